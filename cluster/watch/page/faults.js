// Buttons that break things. They are there only where the page comes from a load that is to be broken.

import { messages } from "./stream.js";

const RECONNECT_MS = 500;

export class Faults {
  /** @param {HTMLElement} panel @param {(path: string, options?: object) => Promise<Response>} ask */
  constructor(panel, ask) {
    this.panel = panel;
    this.ask = ask;
    this.victims = panel.querySelector("#victims");
    this.said = panel.querySelector("#broken");
    this.end = panel.querySelector("#end");
    this.end.addEventListener("click", () => this.#end());
  }

  /** Show who can be broken and what was, as it changes. */
  async run() {
    for (;;) {
      try {
        const answer = await this.ask("/watch/faults/events");
        for await (const [, told] of messages(answer.body)) {
          this.#show(told);
          this.panel.hidden = false;
        }
      } catch (error) {
        this.said.textContent = error.message;
      }
      this.victims.inert = this.end.disabled = true;
      await new Promise((done) => setTimeout(done, RECONNECT_MS));
    }
  }

  #show({ victims, meanings, done, phase, open }) {
    this.victims.inert = this.end.disabled = !open;
    this.panel.querySelector("#phase").textContent = phase;
    if (this.done !== undefined && this.done !== done.join()) this.said.textContent = "";
    this.done = done.join();
    this.panel.querySelector("#done").replaceChildren(...done.map((line) => {
      const item = document.createElement("li");
      item.textContent = line;
      return item;
    }));
    // Rows are kept by name, so that a button keeps the focus while others come and go.
    const rows = new Map([...this.victims.children].map((row) => [row.dataset.target, row]));
    const wanted = new Set(victims.map((victim) => victim.target));
    // Who is gone goes first: a row that is moved loses the focus.
    for (const [target, row] of rows) if (!wanted.has(target)) row.remove();
    let last = null;
    for (const victim of victims) {
      const row = rows.get(victim.target) ?? this.#row(victim, meanings);
      if (row !== (last ? last.nextElementSibling : this.victims.firstElementChild)) {
        if (last) last.after(row);
        else this.victims.prepend(row);
      }
      last = row;
    }
  }

  #row({ target, label, kinds }, meanings) {
    const row = document.createElement("li");
    row.dataset.target = target;
    const name = document.createElement("span");
    name.textContent = label;
    row.append(name, ...kinds.map((kind) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = target ? kind.split("-")[0] : kind.replaceAll("-", " ");
      button.title = meanings[kind];
      button.setAttribute("aria-label", target ? `${button.textContent} ${label}` : button.textContent);
      button.addEventListener("click", () => this.#press(kind, target, label));
      return button;
    }));
    return row;
  }

  async #end() {
    this.said.textContent = "no more is sent; what was sent is delivered, and then judged";
    try {
      await this.ask("/watch/end", { method: "POST" });
    } catch (error) {
      this.said.textContent = error.message;
    }
  }

  async #press(kind, target, label) {
    this.said.textContent = `${kind.replaceAll("-", " ")}${target && ` ${label}`}: on its way`;
    try {
      await this.ask("/watch/faults", { method: "POST", body: JSON.stringify({ kind, target }) });
    } catch (error) {
      this.said.textContent = error.message;
    }
  }
}
