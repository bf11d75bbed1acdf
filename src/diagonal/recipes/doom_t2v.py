"""The text-to-video world of Doom: captioned clips of eight scenarios, 20 M parameters, students of three methods.

`doom_t2v` is meant for one H200, minutes a stage. `doom_t2v:smoke` is the same chain so small that a laptop finishes in
a minute; its result is not meant to be good, and its gates let nearly everything pass.
"""

from __future__ import annotations

from diagonal.training.latents.stages import chain
from diagonal.training.loop import RunConfig
from diagonal.training.recipe import (
    Chain,
    CodecRecipe,
    StudentRecipe,
    TeacherRecipe,
    TrajectoryRecipe,
    VideoRecipe,
)
from diagonal.training.stages import Gate

SIZES = ("full", "smoke")
METHODS = ("diagonal-distillation-prompts", "diagonal-distillation", "self-forcing", "causvid")
ABLATIONS = tuple(
    f"{method}:{change}"
    for method in METHODS[:2]
    for change in (
        *("schedule=4444444", "schedule=5433333", "schedule=5432222", "schedule=5333333", "schedule=4333333"),
        *("schedule=4222222", "schedule=5422222"),
        *("context=clean", "context=t20", "context=t50", "context=t100", "context=t200", "context=200"),
        *("flow=0", "flow=0.2", "flow=0.5", "flow=2"),
        *("flow=0.25", "flow=0.75", "flow=1.25", "flow=1.5"),
        *(f"schedule=2222222{more}" for more in ("", ",context=clean", ",context=300", ",context=500")),
        *("schedule=2222222,context=700", "schedule=2222222,context=900"),
    )
)


def video(size: str = "full") -> VideoRecipe:
    """`size` is full or smoke."""
    if size not in SIZES:
        raise ValueError(f"doom_t2v has no size {size!r}; known: {', '.join(SIZES)}")
    return _full() if size == "full" else _smoke()


def distill(size: str = "full") -> Chain:
    """The whole chain, from recordings to students."""
    return chain(video(size))


def _full() -> VideoRecipe:
    """96x128 at 8.75 frames a second, clips of 41 frames: 21 latent frames, so 7 chunks of 3. An episode is 5 clips."""
    clip = 41
    return VideoRecipe(
        model="doom-t2v",
        scenarios=(
            *("my_way_home", "deadly_corridor", "defend_the_center", "defend_the_line"),
            *("health_gathering", "health_gathering_supreme", "predict_position", "rocket_basic"),
        ),
        frames=260 * 5 * clip,
        held_out_frames=20 * 5 * clip,
        episode_frames=5 * clip,
        clip=clip,
        hop=clip,
        ways=4,
        seed=0,
        codec=CodecRecipe(
            "wan_vae/doom",
            RunConfig(steps=4000, seed=1, warmup=100, evaluate_every=1000, save_every=1000),
            batch=16,
            clip=9,
            frames=20_500,
            gate=Gate("val_psnr", least=27.0),
        ),
        teacher=TeacherRecipe(
            RunConfig(steps=5000, seed=2, warmup=300, ema=0.999, ema_from=2000, evaluate_every=1250, save_every=1250),
            batch=64,
            gate=Gate("val_text_gain", least=0.03),
            shift=3.0,
        ),
        trajectories=TrajectoryRecipe(count=1024, held_out=64, batch=128, steps=40, shift=3.0),
        ode=StudentRecipe(
            RunConfig(steps=400, seed=4, warmup=50, ema=0.98, evaluate_every=200, save_every=400),
            batch=64,
            gate=Gate("val_loss", most=0.1),
            lr=2e-4,
        ),
        distill=StudentRecipe(
            RunConfig(
                steps=600, seed=5, warmup=12, clip=10.0, ema=0.95, log_every=60, evaluate_every=300, save_every=600
            ),
            batch=32,
            gate=Gate("val_motion", least=0.2, most=5.0),
            lr=4e-5,
            critic_lr=1e-4,
            guidance_scale=1.0,
        ),
        methods=METHODS,
        ablations=ABLATIONS,
    )


def _smoke() -> VideoRecipe:
    """Two scenarios and clips of six latent frames."""

    def run(steps: int, seed: int) -> RunConfig:
        return RunConfig(steps=steps, seed=seed, warmup=2, log_every=5, evaluate_every=steps, save_every=5)

    return VideoRecipe(
        model="doom-t2v/tiny",
        scenarios=("my_way_home", "health_gathering"),
        frames=132,
        held_out_frames=66,
        episode_frames=33,
        clip=11,
        hop=11,
        ways=2,
        seed=0,
        codec=CodecRecipe(
            "wan_vae/doom-tiny", run(20, 1), batch=2, clip=5, frames=132, gate=Gate("val_psnr", least=5.0), lr=3e-3
        ),
        teacher=TeacherRecipe(run(20, 2), batch=4, gate=Gate("val_text_gain", least=-1.0)),
        trajectories=TrajectoryRecipe(count=4, held_out=2, batch=2, steps=4),
        ode=StudentRecipe(run(5, 4), batch=2, gate=Gate("val_loss", most=10.0), lr=2e-4),
        distill=StudentRecipe(run(6, 5), batch=2, gate=Gate("val_motion", least=0.0), lr=2e-5, critic_lr=4e-5),
        methods=(METHODS[0], "diagonal-distillation:schedule=4444444,context=clean,flow=0", "causvid"),
        ablations=(*METHODS, *ABLATIONS),
    )
