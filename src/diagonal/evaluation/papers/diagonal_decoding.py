"""Ye et al., Fast Autoregressive Video Generation with Diagonal Decoding, arXiv 2503.14070: its tables of results."""

from __future__ import annotations

from dataclasses import replace

from diagonal.evaluation.papers import Column, Paper, Row, Table
from diagonal.evaluation.papers import rows as read

QUALITY = (
    Column("FVD ↓", "fvd"),
    Column("Subject Cons. ↑", "subject_consistency"),
    Column("Image Qual. ↑", "imaging_quality"),
    Column("Dynamic degree ↑", "dynamic_degree"),
)
FPS, TP, STEP = Column("FPS ↑", "fps"), Column("TP ↑", "tokens_per_second"), Column("STEP (k) ↓", "calls")
WITH_TP, WITHOUT_TP = (*QUALITY, FPS, TP, STEP), (*QUALITY, FPS, STEP)
MODELS = {
    "4B": "cosmos/4b",
    "12B": "cosmos/12b",
    "200M": "wham/200m",
    "1.6B": "wham/1.6b",
    "MC-AR 300M": "mcar/300m",
    "MC-AR 700M": "mcar/700m",
    "MC-AR 1.2B": "mcar/1200m",
}
SCHEDULES = {"NTP": "raster", "ZipAR ws=1": "window:s=1,overlap_first_row=true"}
SCHEDULES |= {f"k={k}": f"diagonal:k={k}" for k in (1, 2, 4)}
SCHEDULES |= {f"k={k} w/o FT": f"diagonal:k={k}" for k in (2, 4)}
SCHEDULES |= {f"k={k},d={d}": f"diagonal:k={k},d={d}" for k in (1, 2, 4) for d in range(1, 41)}
FINE_TUNED = "k=2 w/ FT"
COSMOS, WHAM, MCAR = "3x40x64", "100x18x30", "15x14x24"
CONTINUED = "24 frames after 9"


def _table(number: str, caption: str, columns: tuple[Column, ...], text: str) -> Table:
    return Table(number, caption, columns, tuple(_told(row) for row in read(text, MODELS, SCHEDULES, columns)))


def _told(row: Row) -> Row:
    """Fine-tuned weights make other videos at the same speed."""
    if not row.label.endswith(FINE_TUNED):
        return row
    return replace(row, schedule="diagonal:k=2", missing="no fine-tuned weights of this model: nobody has trained them")


def _cosmos(table: Table, data: str) -> Table:
    return replace(table, grid=COSMOS, frames=24, data=data)


def _mcar(table: Table) -> Table:
    return replace(table, grid=MCAR, frames=15, data="VPT", note="15 frames after one, along the actions of a clip.")


TABLES = (
    _cosmos(
        _table(
            "1",
            f"Cosmos on RealEstate10K, {CONTINUED}",
            WITH_TP,
            """
            14B | Diffusion | 129 0.976 0.677 0.61 0.08 / /
            4B | NTP | 136 0.978 0.604 0.49 0.38 120 7.68
            4B | k=4,d=20 | 136 0.979 0.604 0.50 2.66 852 0.26
            4B | k=2,d=40 | 137 0.978 0.600 0.49 3.02 966 0.30
            4B | k=2,d=10 | 137 0.978 0.599 0.46 3.41 1097 0.15
            12B | NTP | 135 0.978 0.602 0.54 0.15 49 7.68
            12B | k=2,d=40 | 136 0.978 0.601 0.50 1.21 384 0.30
            12B | k=2,d=10 | 136 0.978 0.600 0.51 1.50 480 0.19
            12B | k=1,d=40 | 136 0.976 0.590 0.49 1.62 512 0.18
            12B | k=1,d=1 | 139 0.967 0.564 0.51 1.71 549 0.11
            """,
        ),
        "RealEstate10K",
    ),
    replace(
        _table(
            "2",
            "WHAM, frame after frame, 100 frames",
            WITH_TP,
            """
            200M | NTP | 367 0.747 0.628 0.983 0.23 124 54
            200M | k=2 | 462 0.723 0.613 0.967 0.75 405 6.4
            200M | k=1 | 472 0.727 0.624 0.902 0.97 524 4.7
            1.6B | NTP | 336 0.747 0.628 0.975 0.12 65 54
            1.6B | k=2 | 378 0.749 0.627 0.975 0.34 184 6.4
            1.6B | k=1 | 365 0.739 0.625 0.975 0.40 216 4.7
            """,
        ),
        grid=WHAM,
        frames=100,
        data="WHAM",
    ),
    _mcar(
        _table(
            "3",
            "MC-AR 700M, with and without fine-tuning",
            WITH_TP,
            """
            MC-AR 700M | NTP | 210 0.864 0.677 0.985 1.08 363 5.04
            MC-AR 700M | k=2 w/o FT | 247 0.844 0.628 0.985 2.09 702 0.75
            MC-AR 700M | k=2 w/ FT | 231 0.859 0.673 1.000 2.09 702 0.75
            """,
        )
    ),
    _cosmos(
        _table(
            "4",
            "ZipAR against DiagD on Cosmos (RealEstate10K)",
            WITHOUT_TP,
            """
            4B | NTP | 136 0.978 0.604 0.49 0.38 7.68
            4B | ZipAR ws=1 | 349 0.823 0.379 0.53 3.42 0.30
            4B | k=2,d=10 | 137 0.978 0.599 0.46 3.41 0.15
            12B | NTP | 135 0.978 0.602 0.54 0.15 7.68
            12B | ZipAR ws=1 | 137 0.974 0.569 0.49 1.04 0.30
            12B | k=1,d=1 | 139 0.967 0.564 0.51 1.71 0.11
            """,
        ),
        "RealEstate10K",
    ),
    _cosmos(
        _table(
            "5",
            f"Cosmos on BridgeData V2, {CONTINUED}",
            WITHOUT_TP,
            """
            4B | NTP | 602 0.926 0.594 0.86 0.38 7.68
            4B | k=4,d=20 | 615 0.928 0.592 0.87 2.66 0.26
            4B | k=2,d=40 | 625 0.921 0.585 0.65 3.02 0.30
            4B | k=2,d=10 | 626 0.921 0.580 0.69 3.41 0.15
            12B | NTP | 585 0.926 0.590 0.80 0.15 7.68
            12B | k=2,d=40 | 599 0.930 0.597 0.70 1.21 0.30
            12B | k=2,d=10 | 608 0.930 0.598 0.76 1.50 0.19
            12B | k=1,d=1 | 609 0.923 0.590 0.69 1.71 0.11
            """,
        ),
        "BridgeData",
    ),
    _cosmos(
        _table(
            "6",
            f"Cosmos on BDD100K, {CONTINUED}",
            WITHOUT_TP,
            """
            4B | NTP | 567 0.946 0.500 0.99 0.38 7.68
            4B | k=4,d=20 | 575 0.947 0.501 0.98 2.66 0.26
            4B | k=2,d=40 | 579 0.945 0.498 0.97 3.02 0.30
            4B | k=2,d=10 | 585 0.940 0.492 0.99 3.41 0.15
            12B | NTP | 569 0.946 0.501 0.99 0.15 7.68
            12B | k=2,d=40 | 568 0.947 0.499 0.99 1.21 0.30
            12B | k=2,d=10 | 568 0.943 0.494 0.99 1.50 0.19
            12B | k=1,d=1 | 581 0.926 0.462 0.99 1.71 0.11
            """,
        ),
        "BDD100K",
    ),
    _cosmos(
        _table(
            "7",
            "Cosmos, other k and d (RealEstate10K)",
            WITH_TP,
            """
            4B | k=1,d=2 | 348 0.844 0.393 0.52 3.42 1280 0.11
            4B | k=1,d=3 | 350 0.846 0.397 0.54 3.41 1097 0.11
            4B | k=1,d=5 | 352 0.859 0.402 0.51 3.41 1097 0.11
            4B | k=1,d=9 | 342 0.863 0.408 0.52 3.41 1097 0.12
            4B | k=2,d=4 | 171 0.936 0.515 0.55 3.41 1097 0.15
            4B | k=2,d=6 | 145 0.966 0.574 0.49 3.41 1097 0.15
            4B | k=2,d=10 | 137 0.978 0.599 0.46 3.41 1097 0.16
            4B | k=2,d=18 | 136 0.979 0.601 0.48 3.00 960 0.24
            4B | k=4,d=8 | 154 0.959 0.552 0.54 2.67 853 0.24
            4B | k=4,d=12 | 139 0.976 0.595 0.49 2.67 853 0.24
            4B | k=4,d=20 | 136 0.979 0.604 0.50 2.66 852 0.26
            4B | k=4,d=36 | 136 0.979 0.603 0.48 2.40 768 0.29
            12B | k=1,d=2 | 139 0.967 0.564 0.51 1.71 549 0.11
            12B | k=1,d=3 | 152 0.955 0.546 0.53 1.71 549 0.11
            12B | k=1,d=5 | 143 0.970 0.576 0.49 1.71 549 0.11
            12B | k=1,d=9 | 136 0.863 0.408 0.52 1.61 515 0.12
            12B | k=2,d=4 | 152 0.968 0.563 0.52 1.60 512 0.15
            12B | k=2,d=6 | 143 0.973 0.585 0.50 1.60 512 0.15
            12B | k=2,d=10 | 143 0.978 0.600 0.51 1.60 512 0.16
            12B | k=2,d=18 | 136 0.979 0.601 0.48 1.50 480 0.18
            """,
        ),
        "RealEstate10K",
    ),
    _mcar(
        _table(
            "10",
            "MC-AR 300M",
            WITHOUT_TP,
            """
            MC-AR 300M | NTP | 223 0.869 0.676 0.98 1.08 5.04
            MC-AR 300M | k=2 w/o FT | 246 0.854 0.650 0.99 3.98 0.75
            MC-AR 300M | k=2 w/ FT | 233 0.845 0.648 0.98 3.98 0.75
            """,
        )
    ),
    _mcar(
        _table(
            "11",
            "MC-AR 1.2B",
            WITHOUT_TP,
            """
            MC-AR 1.2B | NTP | 203 0.866 0.677 0.97 0.89 5.04
            MC-AR 1.2B | k=4 w/o FT | 246 0.857 0.645 0.98 1.42 1.14
            MC-AR 1.2B | k=2 w/o FT | 246 0.841 0.606 0.97 1.98 0.75
            MC-AR 1.2B | k=2 w/ FT | 227 0.853 0.661 0.98 1.98 0.75
            """,
        )
    ),
)
PAPER = Paper(
    "diagonal-decoding",
    "Ye et al., Fast Autoregressive Video Generation with Diagonal Decoding, arXiv 2503.14070",
    "one A100 (80 GB)",
    TABLES,
)
