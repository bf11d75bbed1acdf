"""The server as an application of Ray Serve, for a config file of Serve's or a program:

applications:
  - name: diagonal
    import_path: diagonal.scale.ray:app
    args: {models: [doom], seats: 8, snapshots: /shared/sessions}
    deployments: [{name: worlds, num_replicas: 4, ray_actor_options: {num_gpus: 1}}]
"""

from __future__ import annotations

import os
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.config import RequestRouterConfig

from diagonal.scale.replica import Replica, ServeArgs

NAME = "worlds"  # of the deployment
SPARE = 32  # open requests beside seats: pages, health, and players while they are refused
GRACE = 20.0  # seconds to hand sessions over, at most; a replica goes as soon as it has none


def app(args: ServeArgs) -> Application:
    """The application that a config file names. Numbers of replicas and GPUs belong to its `deployments`: changed
    there, they replace no replica."""
    asked = args if isinstance(args, ServeArgs) else ServeArgs.model_validate(args)
    options: dict[str, Any] = {
        "name": NAME,
        "max_ongoing_requests": asked.seats * len(asked.models) + SPARE,
        "graceful_shutdown_timeout_s": GRACE,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": 5.0,
    }
    # Serve's HAProxy has a balance of its own, and refuses another one. Sessions are then cut rather than handed over,
    # and go on from their newest snapshot.
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "0") != "1":
        router: dict[str, Any] = {"request_router_class": "diagonal.scale.router.SessionRouter"}
        options["request_router_config"] = RequestRouterConfig(**router)
    deployment = serve.deployment(**options)(serve.ingress()(Replica))
    bound: Application = deployment.bind(asked.model_dump())
    return bound
