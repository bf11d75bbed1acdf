"""More than one GPU and more than one machine, by engines that exist: Ray Serve for sessions, Ray Data for batches,
torch.distributed for one model on several GPUs (docs/scale.md).

    ray.py       `app`, the server as an application of Ray Serve; replica.py what each process of it is
    serving.py   start it on this machine or on a cluster, from options or from a config file of Serve's
    pool.py      a list of items over actors, each with a model of its own
    cluster.py   the cluster itself: reach it, count its GPUs
    parallel.py  one model on several GPUs; launch.py its processes, prediction.py what it should gain

Ray needs the extra: pip install 'diagonal[ray]'. No other room imports ray.
"""
