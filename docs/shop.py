# shop.py
from datetime import timedelta
from pathlib import Path

from penstock import App, Backoff, Context, Reject

app = App("shop")
QUICKLY = Backoff(base=timedelta(milliseconds=200))


@app.task(retries=5, timeout="30s")
async def resize(image: str, width: int = 800) -> dict[str, object]:
    """Pretend to scale a picture."""
    if width > 4000:
        raise Reject(f"{width} pixels are more than the 4000 we print")
    return {"image": image, "width": width}


@app.task(reply=True)
async def price(item: int, amount: int = 1) -> float:
    """Answer while the caller waits."""
    return item * 1.5 * amount


@app.task(retries=2, backoff=QUICKLY)
def charge(ctx: Context, order: int) -> str:
    """Fail while the bank is closed: as long as there is a file of that name."""
    if Path("bank-is-closed").exists():
        raise ConnectionError("the bank is closed")
    return f"order {order} is paid, at attempt {ctx.attempt}"
