"""Writes the orders of a made-up shop: the same bytes every time.

    python datasets/orders/generate.py [folder]

One parquet file per region. Seeded with the standard library's generator, so the rows do not depend
on anybody's numpy; the bytes also depend on pyarrow's version, which each file names itself.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20241001
ORDERS = 100_000
DAY_MS = 86_400_000
FIRST_DAY_MS = int(datetime(2024, 10, 1, tzinfo=UTC).timestamp() * 1000)
DAYS = 92

# region: (share of the orders, customers, its clock against UTC in hours)
REGIONS: dict[str, tuple[float, int, int]] = {
    "ap-south": (0.13, 3600, 5),
    "ap-southeast": (0.10, 2600, 8),
    "eu-central": (0.19, 4400, 1),
    "eu-west": (0.16, 4000, 0),
    "me-south": (0.06, 1500, 3),
    "sa-east": (0.08, 2200, -3),
    "us-east": (0.17, 4100, -5),
    "us-west": (0.11, 2900, -8),
}

# product: (list price, how often it is bought)
PRODUCTS: dict[str, tuple[float, float]] = {
    f"{thing} {size}".strip(): (round(price * factor, 2), weight * popularity)
    for thing, price, weight in (
        ("backpack", 69.0, 5), ("bottle", 14.9, 11), ("climbing rope", 129.0, 1.5),
        ("down jacket", 219.0, 3), ("fleece", 59.9, 6), ("gas stove", 44.5, 2.5),
        ("gloves", 24.9, 7), ("headlamp", 39.0, 6), ("hiking boots", 149.0, 4),
        ("map case", 12.5, 2), ("rain shell", 119.0, 5), ("sleeping bag", 139.0, 3),
        ("sleeping mat", 79.0, 3), ("socks", 11.9, 14), ("tent", 289.0, 2),
        ("trekking poles", 64.0, 3.5),
    )
    for size, factor, popularity in (("", 1.0, 1.0), ("kids", 0.7, 0.35), ("pro", 1.6, 0.25))
}

# local hour of the day: how busy the shop is
HOURS = (1, 1, 1, 1, 1, 2, 4, 7, 10, 12, 13, 13, 14, 12, 11, 11, 12, 14, 17, 20, 21, 17, 9, 4)

SCHEMA = pa.schema([
    pa.field("order_id", pa.string(), nullable=False),
    pa.field("customer", pa.string(), nullable=False),
    pa.field("region", pa.string(), nullable=False),
    pa.field("product", pa.string(), nullable=False),
    pa.field("quantity", pa.int32(), nullable=False),
    pa.field("unit_price", pa.float64(), nullable=False),
    pa.field("ordered_at", pa.timestamp("ms", tz="UTC"), nullable=False),
    pa.field("status", pa.string(), nullable=False),
])


def busy(day: int) -> float:
    """How busy a day is: weekends, the Friday sale of November, the weeks before Christmas."""
    weekday = datetime.fromtimestamp(FIRST_DAY_MS / 1000 + day * 86_400, UTC).weekday()
    weight = (1.0, 0.95, 0.95, 1.0, 1.1, 1.35, 1.45)[weekday]
    if 57 <= day <= 61:
        weight *= 2.6
    elif 65 <= day <= 81:
        weight *= 1.5
    return weight


def status_after(age_days: float, dice: Random) -> str:
    """What has become of an order, this many days after it was placed."""
    chance = dice.random()
    if chance < 0.04:
        return "cancelled"
    if age_days < 0.5:
        return "placed"
    if age_days < 2:
        return "paid"
    if age_days < 6:
        return "shipped"
    return "returned" if chance > 0.93 else "delivered"


def price(product: str, day: int, dice: Random) -> float:
    """The price paid: the list price, the sale, and some customers' vouchers."""
    listed = PRODUCTS[product][0]
    if 57 <= day <= 61:
        listed *= 0.8
    if dice.random() < 0.12:
        listed *= 1 - dice.choice((0.05, 0.1, 0.15))
    return round(listed, 2)


def orders(count: int = ORDERS, seed: int = SEED) -> list[tuple]:
    """Every order in the sequence in which it was placed; fields as in SCHEMA."""
    dice = Random(seed)
    regions = list(REGIONS)
    shares = list(accumulate(share for share, _, _ in REGIONS.values()))
    products = list(PRODUCTS)
    tastes = list(accumulate(weight for _, weight in PRODUCTS.values()))
    days = list(accumulate(busy(day) for day in range(DAYS)))
    hours = list(accumulate(HOURS))
    end_ms = FIRST_DAY_MS + DAYS * DAY_MS

    placed = []
    for _ in range(count):
        region = dice.choices(regions, cum_weights=shares)[0]
        _, customers, offset_h = REGIONS[region]
        day = dice.choices(range(DAYS), cum_weights=days)[0]
        hour = dice.choices(range(24), cum_weights=hours)[0]
        at_ms = FIRST_DAY_MS + day * DAY_MS + (hour - offset_h) * 3_600_000
        at_ms = min(max(at_ms + dice.randrange(3_600_000), FIRST_DAY_MS), end_ms - 1)
        customer = int(customers * dice.random() ** 2.2)  # few buy often, many buy once
        product = dice.choices(products, cum_weights=tastes)[0]
        quantity = min(12, 1 + int(dice.expovariate(1.1 if PRODUCTS[product][0] < 40 else 3.0)))
        paid = price(product, day, dice)
        status = status_after((end_ms - at_ms) / DAY_MS, dice)
        placed.append((at_ms, region, f"{region}/c{customer:05d}", product, quantity, paid, status))
    placed.sort()
    return [
        (f"o{number:07d}", customer, region, product, quantity, paid, at_ms, status)
        for number, (at_ms, region, customer, product, quantity, paid, status) in enumerate(placed)
    ]


def table(rows: list[tuple]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)],
        schema=SCHEMA,
    )


def write(folder: Path) -> list[Path]:
    """One file per region in `folder`; returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = orders()
    files = []
    for region in REGIONS:
        files.append(folder / f"{region}.parquet")
        pq.write_table(
            table([row for row in rows if row[2] == region]),
            files[-1],
            compression="snappy",
            row_group_size=8192,
            version="2.6",
        )
    return files


if __name__ == "__main__":
    for file in write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(f"{file.stat().st_size:>9,d}  {file}")
