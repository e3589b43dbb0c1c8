// The ring of hashes: a ring a partition, an arc a range, a glow a hash that drains.

const HASHES = 65536;
const GLOW_MS = 1500; // a drain that ended stays visible for so long, or the eye would miss the short ones
const TURN = Math.PI * 2;

/**
 * The colour of a consumer: the same name has the same colour in every partition and after every reload. Those that are
 * numbered, consumer-1 and so on, are a golden angle apart, so that neighbours never look alike.
 */
export function colourOf(name) {
  const [, stem, number] = name.match(/^(.*?)(\d{0,9})$/);
  let hash = 2166136261;
  for (const letter of stem) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619) >>> 0;
  const turns = Number(number || 0);
  const hue = Math.round((hash + turns * 137.508) % 360);
  return `hsl(${hue} ${[70, 55, 80][turns % 3]}% ${[46, 58, 38][Math.floor(turns / 3) % 3]}%)`;
}

export class Ring {
  /** @param {HTMLCanvasElement} canvas @param {(partition: number, hash: number) => void} chosen */
  constructor(canvas, chosen) {
    this.canvas = canvas;
    this.chosen = chosen;
    this.partitions = [];
    this.glow = new Map();
    this.cursor = { partition: 0, hash: 0 };
    this.focused = false;
    canvas.addEventListener("click", (event) => this.#click(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => { this.focused = true; this.draw(); });
    canvas.addEventListener("blur", () => { this.focused = false; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** New owners and drains; `now` in milliseconds. */
  take(partitions, now) {
    this.partitions = partitions;
    for (const part of partitions) {
      for (const [hash, holder, unacked] of part.drains ?? []) {
        this.glow.set(part.partition * HASHES + hash, { at: now, holder, unacked });
      }
    }
    for (const [key, one] of this.glow) if (now - one.at > GLOW_MS) this.glow.delete(key);
    this.draw(now);
  }

  draw(now = Date.now()) {
    const { canvas } = this;
    const scale = devicePixelRatio || 1;
    const size = canvas.clientWidth;
    if (!size) return;
    if (canvas.width !== Math.round(size * scale)) canvas.width = canvas.height = Math.round(size * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, size, size);
    const rings = Math.max(this.partitions.length, 1);
    this.middle = size / 2;
    this.outer = size / 2 - 14;
    this.width = Math.min((this.outer * 0.62) / rings, 46);
    for (const part of this.partitions) this.#owners(pen, part);
    for (const [key, one] of this.glow) this.#drain(pen, Math.floor(key / HASHES), key % HASHES, one, now);
    if (this.focused) this.#mark(pen);
  }

  #radius(partition) { return this.outer - this.width * partition; }

  #owners(pen, part) {
    const radius = this.#radius(part.partition) - this.width / 2;
    pen.lineWidth = this.width - 3;
    pen.strokeStyle = getComputedStyle(this.canvas).getPropertyValue("--line");
    pen.beginPath();
    pen.arc(this.middle, this.middle, radius, 0, TURN);
    pen.stroke();
    for (const consumer of part.consumers ?? []) {
      pen.strokeStyle = colourOf(consumer.name);
      for (const [first, last] of consumer.ranges) {
        pen.beginPath();
        pen.arc(this.middle, this.middle, radius, angle(first), angle(last + 1));
        pen.stroke();
      }
    }
  }

  #drain(pen, partition, hash, one, now) {
    const left = 1 - Math.max(now - one.at, 0) / GLOW_MS;
    const at = angle(hash + 0.5);
    const outer = this.#radius(partition);
    pen.save();
    pen.globalAlpha = Math.max(left, 0);
    pen.shadowBlur = 12;
    pen.shadowColor = colourOf(one.holder);
    pen.strokeStyle = "#fff3c4";
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(this.middle + Math.cos(at) * (outer - this.width), this.middle + Math.sin(at) * (outer - this.width));
    pen.lineTo(this.middle + Math.cos(at) * (outer + 5), this.middle + Math.sin(at) * (outer + 5));
    pen.stroke();
    pen.restore();
  }

  #mark(pen) {
    const at = angle(this.cursor.hash + 0.5);
    const outer = this.#radius(this.cursor.partition);
    const radius = outer - this.width / 2;
    pen.strokeStyle = getComputedStyle(this.canvas).getPropertyValue("--ink");
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(this.middle + Math.cos(at) * radius, this.middle + Math.sin(at) * radius, this.width / 2, 0, TURN);
    pen.stroke();
  }

  #click(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left - this.middle;
    const y = event.clientY - box.top - this.middle;
    const partition = Math.floor((this.outer - Math.hypot(x, y)) / this.width);
    if (partition < 0 || partition >= this.partitions.length) return;
    const turn = (Math.atan2(y, x) + Math.PI / 2 + TURN) % TURN;
    this.cursor = { partition, hash: Math.min(Math.floor((turn / TURN) * HASHES), HASHES - 1) };
    this.chosen(partition, this.#nearestDrain());
    this.draw();
  }

  /** A hash is a fortieth of a pixel wide: who clicks on a glow means the hash that glows. */
  #nearestDrain() {
    const { partition, hash } = this.cursor;
    let best = hash;
    let distance = HASHES / 180;
    for (const key of this.glow.keys()) {
      const off = Math.abs((key % HASHES) - hash);
      if (Math.floor(key / HASHES) === partition && off < distance) [best, distance] = [key % HASHES, off];
    }
    return best;
  }

  #key(event) {
    const step = event.shiftKey ? 1 : 512;
    const { cursor } = this;
    if (event.key === "ArrowRight") cursor.hash = (cursor.hash + step) % HASHES;
    else if (event.key === "ArrowLeft") cursor.hash = (cursor.hash - step + HASHES) % HASHES;
    else if (event.key === "ArrowUp") cursor.partition = Math.max(cursor.partition - 1, 0);
    else if (event.key === "ArrowDown") cursor.partition = Math.min(cursor.partition + 1, this.partitions.length - 1);
    else if (event.key === "Enter" || event.key === " ") this.chosen(cursor.partition, this.#nearestDrain());
    else return;
    event.preventDefault();
    this.draw();
  }
}

function angle(hash) { return (hash / HASHES) * TURN - Math.PI / 2; }
