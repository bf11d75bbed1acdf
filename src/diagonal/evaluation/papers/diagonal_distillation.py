"""Streaming Autoregressive Video Generation via Diagonal Distillation: tables 1 to 3 and figures 5 and 8.

The figures print no numbers; what their axes are is asked of the small world (`doom-t2v`) here.
"""

from __future__ import annotations

from diagonal.evaluation.papers import Column, Paper, Row, Table

WAN, SKY = "wan/1.3b", "skyreels/1.3b"
SPEED = (Column("Throughput (FPS) ↑", "fps"), Column("Latency (s) ↓", "latency"), Column("Speedup", "speedup"))
VBENCH = (
    Column("Total ↑", "vbench:total"),
    Column("Quality ↑", "vbench:quality"),
    Column("Semantic ↑", "vbench:semantic"),
)
THREE = (Column("Temporal Quality ↑"), Column("Frame Quality ↑"), Column("Text Alignment ↑"))
UNDEFINED = "not defined in the paper; no weights of these students"
OURS = "diagonal-distillation"


def _six() -> tuple[Row, ...]:
    absent = "not in the library"
    return (
        Row("Wan2.1", WAN, "teacher:steps=50", ("0.78", "103", "1.0x", "84.26", "85.3", "80.09"), "wan"),
        Row("SkyReels-V2", SKY, "", ("0.49", "112", "0.91x", "82.67", "84.70", "74.53"), "skyreels-sync"),
        Row("MAGI-1", "", "", ("0.19", "282", "0.36x", "79.18", "82.04", "67.74"), missing=absent),
        Row("CausVid", WAN, "", ("17.0", "0.69", "149.3x", "81.20", "84.05", "69.80"), "causvid"),
        Row("Self Forcing", WAN, "", ("17.0", "0.69", "149.3x", "84.31", "85.07", "81.28"), "self-forcing"),
        Row("DiaDistill", WAN, "steps=4322222", ("31.0", "0.37", "277.3x", "84.48", "85.26", "81.73"), OURS),
    )


def _ablated(label: str, *printed: str) -> Row:
    return Row(label, "", "", printed, missing=UNDEFINED)


def _steps(digits: str, *printed: str) -> Row:
    return Row(digits, WAN, f"steps={digits}", printed, OURS)


TABLES = (
    Table("1", "six models, five seconds of 832x480", (*SPEED, *VBENCH), _six(), frames=81, small=1),
    Table(
        "2",
        "without each part of the method",
        THREE,
        (
            _ablated("without Diagonal Forcing", "92.1", "60.1", "26.9"),
            _ablated("without flow loss", "92.5", "60.8", "27.8"),
            _ablated("without Diagonal Denoising", "95.1", "63.2", "28.6"),
            _ablated("full method", "94.9", "63.4", "28.9"),
        ),
        small=2,
    ),
    Table(
        "3",
        "denoising steps of the seven chunks",
        (*THREE, Column("NFEs"), Column("Latency (s) ↓", "latency"), Column("Throughput (FPS) ↑", "fps")),
        (
            _steps("4322222", "94.9", "63.4", "28.9", "34", "0.21", "31.0"),
            _steps("5433333", "-", "63.2", "29.3", "48", "0.31", "23.3"),
            _steps("5432222", "-", "63.1", "29.0", "40", "0.23", "29.7"),
            _steps("5333333", "-", "63.9", "29.1", "46", "0.31", "22.5"),
            _steps("4333333", "-", "63.7", "28.5", "44", "0.30", "23.5"),
            _steps("4222222", "93.4", "62.3", "27.8", "32", "0.22", "32.0"),
        ),
        frames=81,
        note="Temporal quality of four rows cannot be read in our copy. The paper's NFEs are twice the steps.",
        small=3,
    ),
    Table(
        "Figure 5",
        "quality against the noise of the context (a) and the weight of the flow loss (b)",
        (),
        (),
        note="The paper draws curves: best at step 100 of 1,000 (a) and at weight 1.0 (b). It prints no numbers.",
        small=4,
    ),
    Table(
        "Figure 8",
        "long videos: votes of people, and quality over time",
        (),
        (),
        note="The paper draws curves and prints no numbers. Votes: `diagonal compare`, whose results this report does "
        "not read.",
        small=5,
    ),
)
PAPER = Paper(
    OURS,
    "Liu et al., Streaming Autoregressive Video Generation via Diagonal Distillation, ICLR 2026",
    "one H100",
    TABLES,
)
