// Small charts on a canvas: lines over the last minutes, bars along the time axis.

const KEPT = 600;

/** Lines that share an axis of time; `series` maps a name to its colour variable. shared: one scale for all of them. */
export class Lines {
  constructor(canvas, series, { shared = false } = {}) {
    this.shared = shared;
    this.canvas = canvas;
    this.series = Object.entries(series);
    this.rows = [];
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  take(at, values) {
    this.rows.push([at, values]);
    if (this.rows.length > KEPT) this.rows.shift();
    this.draw();
  }

  clear() { this.rows = []; }

  draw() {
    const drawn = prepare(this.canvas);
    if (!drawn) return;
    const { pen, width, height, style } = drawn;
    const rows = this.rows;
    if (rows.length < 2) return;
    const [first, last] = [rows[0][0], rows[rows.length - 1][0]];
    const peaks = this.series.map(([name]) => Math.max(...rows.map(([, values]) => values[name] ?? 0)));
    const spot = { x: 4, y: 11 };
    this.series.forEach(([name, colour], number) => {
      const peak = peaks[number];
      const most = Math.max(this.shared ? Math.max(...peaks) : peak, 1);
      const paint = style.getPropertyValue(colour);
      pen.strokeStyle = paint;
      pen.lineWidth = 1.6;
      pen.beginPath();
      rows.forEach(([at, values], index) => {
        const x = ((at - first) / (last - first)) * width;
        const y = height - 3 - ((values[name] ?? 0) / most) * (height - 38);
        if (index) pen.lineTo(x, y); else pen.moveTo(x, y);
      });
      pen.stroke();
      pen.fillStyle = paint;
      const now = rows[rows.length - 1][1][name] ?? 0;
      const label = `${name} ${short(now)} (peak ${short(peak)})`;
      const wide = pen.measureText(label).width;
      if (spot.x > 4 && spot.x + wide > width) Object.assign(spot, { x: 4, y: spot.y + 13 });
      pen.fillText(label, spot.x, spot.y);
      spot.x += wide + 14;
    });
  }
}

/** Messages by due time: slots of [first ms, last ms, messages]. */
export function drawDue(canvas, slots, now) {
  const drawn = prepare(canvas);
  if (!drawn) return;
  const { pen, width, height, style } = drawn;
  pen.fillStyle = style.getPropertyValue("--soft");
  if (!slots.length) {
    pen.fillText("nothing is delayed", 4, 14);
    return;
  }
  const end = Math.max(...slots.map(([, last]) => last), now + 1000);
  const most = Math.max(...slots.map(([, , messages]) => messages), 1);
  const place = (at) => Math.max(((at - now) / (end - now)) * width, 0);
  pen.fillText(`now`, 2, height - 2);
  const label = `in ${short((end - now) / 1000)} s`;
  pen.fillText(label, width - pen.measureText(label).width - 2, height - 2);
  pen.fillStyle = style.getPropertyValue("--accent");
  for (const [first, last, messages] of slots) {
    const tall = (messages / most) * (height - 34);
    pen.globalAlpha = 0.65;
    pen.fillRect(place(first), height - 16 - tall, Math.max(place(last) - place(first), 2), tall);
  }
  pen.globalAlpha = 1;
}

/** 12345 as 12.3k. */
export function short(number) {
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)}M`;
  if (number >= 1e4) return `${(number / 1e3).toFixed(1)}k`;
  return String(Math.round(number));
}

function prepare(canvas) {
  const scale = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  if (!width) return null;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height, style: getComputedStyle(canvas) };
}
