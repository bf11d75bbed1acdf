"""More than one GPU and more than one machine, by engines that exist: Ray Serve for sessions, Ray Data for batches
(docs/scale.md).

    ray.py       `app`, the server as an application of Ray Serve; replica.py what each process of it is
    serving.py   start it on this machine or on a cluster, from options or from a config file of Serve's
    pool.py      a list of items over actors, each with a model of its own
    cluster.py   the cluster itself: reach it, count its GPUs

Needs the extra: pip install 'diagonal[ray]'. No other room imports ray.
"""
