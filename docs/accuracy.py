"""Draws docs/accuracy.svg, the picture of README.md, from the recorded figures: ``python docs/accuracy.py``.

Source of the figures: benches/results/study-ptq-minilm.csv, which ``octavo lab study ptq-qat --model minilm`` wrote.
"""

import csv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benches" / "results" / "study-ptq-minilm.csv"
PICTURE = ROOT / "docs" / "accuracy.svg"
LINES = {  # family in the table: its name here and its colour (Okabe and Ito)
    "mxint": ("mxint", "#0072B2"),
    "int{w}:g32+int{w}:g32": ("int:g32", "#009E73"),
    "int": ("int:channel, calibrated inputs", "#CC79A7"),
    "mase": ("fixed, set by hand (MASE)", "#D55E00"),
}
WIDTH, HEIGHT = 800, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 510, 40, 290
BITS, PERCENTS = (3, 8), (45, 92)
LABEL_STEP = 18


def across(bits: float) -> float:
    """Return the horizontal place of a width."""
    return LEFT + (bits - BITS[0]) / (BITS[1] - BITS[0]) * (RIGHT - LEFT)


def down(percent: float) -> float:
    """Return the vertical place of an accuracy."""
    return BOTTOM - (percent - PERCENTS[0]) / (PERCENTS[1] - PERCENTS[0]) * (BOTTOM - TOP)


def text(x: float, y: float, words: str, *, colour: str = "#333", anchor: str = "start", weight: str = "normal") -> str:
    """Return a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


def axes() -> list[str]:
    """Return the grid with its numbers."""
    parts = []
    for percent in range(50, 91, 10):
        y = down(percent)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, f"{percent} %", anchor="end"))
    parts += [text(across(bits), BOTTOM + 20, str(bits), anchor="middle") for bits in (3, 4, 6, 8)]
    parts.append(text((LEFT + RIGHT) / 2, BOTTOM + 40, "bits of weights and inputs", anchor="middle"))
    return parts


def picture(rows: list[dict[str, str]]) -> str:
    """Return the picture of the rows of the study's table."""
    accuracy = {(row["family"], int(row["width"])): 100 * float(row["accuracy"]) for row in rows}
    whole = accuracy["fp32", 32]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" role="img">',
        "<title>Accuracy of MiniLM-L6 on SST-2 against the width of weights and inputs</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 20, "Accuracy of MiniLM-L6 on SST-2 without training (figures: at 8 bits)", weight="bold"),
        *axes(),
        f'<path d="M{LEFT} {down(whole):.1f}H{RIGHT}" stroke="#333" stroke-dasharray="5 4"/>',
    ]
    labels = [(whole, f"fp32: {whole:.2f} %", "#333")]
    for family, (name, colour) in LINES.items():
        points = sorted((width, percent) for (of, width), percent in accuracy.items() if of == family)
        path = " ".join(f"{across(width):.1f},{down(percent):.1f}" for width, percent in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{across(width):.1f}" cy="{down(percent):.1f}" r="3.5" fill="{colour}"/>'
            for width, percent in points
        ]
        labels.append((points[-1][1], f"{name}: {points[-1][1]:.2f} %", colour))
    y = 0.0
    for percent, words, colour in sorted(labels, key=lambda label: -label[0]):
        y = max(y + LABEL_STEP, down(percent) - LABEL_STEP)
        parts.append(text(RIGHT + 12, y + 4, words, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    with FIGURES.open(encoding="utf-8", newline="") as file:
        PICTURE.write_text(picture(list(csv.DictReader(file))), encoding="utf-8")
