"""What more replicas give, and when the sum of the gradients eats it: a model of one step, from 1 to 4,096 replicas.

python examples/20_scaling.py [--svg scaling.svg]

The assumptions are written down in docs/scaling.md; change the numbers below to those of your machines.
"""

import argparse

REPLICAS = [2**power for power in range(13)]


def ring_seconds(count, size, bandwidth, latency):
    """A ring all-reduce: 2 (R - 1) messages one after the other, each of size / R bytes."""
    return 0.0 if count == 1 else 2 * (count - 1) * (latency + size / count / bandwidth)


def step_seconds(count, *, rows, parameters, seconds_per_row, overhead, bandwidth, latency, small_sums=2):
    """Forward and backward on the fullest replica, then the sums; nothing overlaps."""
    compute = overhead + -(-rows // count) * seconds_per_row
    gradients = ring_seconds(count, 4 * parameters, bandwidth, latency)
    return compute, gradients + small_sums * ring_seconds(count, 64, bandwidth, latency)


def curve(name, *, rows_of, **machine):
    """Prints rows per second against one replica; `rows_of(R)` is the global batch."""
    print(f"{name}\n{'replicas':>9} {'ms/step':>9} {'of it sums':>11} {'speed-up':>9} {'efficiency':>11}")
    one = sum(step_seconds(1, rows=rows_of(1), **machine)) / rows_of(1)
    points = []
    for count in REPLICAS:
        compute, sums = step_seconds(count, rows=rows_of(count), **machine)
        total = compute + sums
        speed_up = one * rows_of(count) / total
        points.append((count, speed_up))
        share, efficiency = sums / total, speed_up / count
        bar = "#" * round(20 * efficiency)
        print(f"{count:9d} {1e3 * total:9.2f} {share:11.0%} {speed_up:9.1f} {efficiency:11.0%}  {bar}")
    return points


def draw(path, curves):
    """Writes the speed-up of every curve, both axes logarithmic, as a picture."""
    colours = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 620 420" font-family="sans-serif" font-size="12">']
    for power in range(0, 13, 2):
        x, y, label = 50 + 40 * power, 390 - 30 * power, 2**power
        parts.append(f'<text x="{x}" y="408" text-anchor="middle">{label}</text>')
        parts.append(f'<text x="40" y="{y + 4}" text-anchor="end">{label}</text>')
        parts.append(f'<path d="M50 {y}H530M{x} 390V30" stroke="#ddd"/>')
    parts.append('<path d="M50 390L530 30" stroke="#999" stroke-dasharray="4"/>')
    for index, (name, points) in enumerate(curves):
        from math import log2

        line = "L".join(f"{50 + 40 * log2(count):.1f} {390 - 30 * log2(max(gain, 1)):.1f}" for count, gain in points)
        parts.append(f'<path d="M{line}" fill="none" stroke="{colours[index]}" stroke-width="2"/>')
        parts.append(f'<text x="60" y="{45 + 16 * index}" fill="{colours[index]}">{name}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join([*parts, "</svg>\n"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--svg")
    arguments = parser.parse_args()
    fast = {"bandwidth": 100e9, "latency": 5e-6}  # GPUs of one machine, or a fast network
    slow = {"bandwidth": 1.2e9, "latency": 30e-6}  # 10 Gbit/s Ethernet
    small = {"parameters": 25_000_000, "seconds_per_row": 0.4e-3, "overhead": 4e-3}  # a convolutional network
    large = {"parameters": 350_000_000, "seconds_per_row": 8e-3, "overhead": 10e-3}  # a transformer
    curves = [
        ("25 M weights, 4,096 rows for all, fast network", curve("A", rows_of=lambda r: 4096, **small, **fast)),
        ("25 M weights, 64 rows each, fast network", curve("B", rows_of=lambda r: 64 * r, **small, **fast)),
        ("25 M weights, 64 rows each, 10 Gbit/s", curve("C", rows_of=lambda r: 64 * r, **small, **slow)),
        ("350 M weights, 16 rows each, 10 Gbit/s", curve("D", rows_of=lambda r: 16 * r, **large, **slow)),
    ]
    if arguments.svg:
        draw(arguments.svg, curves)


if __name__ == "__main__":
    main()
