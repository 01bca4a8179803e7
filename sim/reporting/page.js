const pictures = JSON.parse(document.getElementById("data").textContent);
const tip = document.getElementById("tip");
const SVG = "http://www.w3.org/2000/svg";

function readable(figure, { series, width }) {
  const frame = figure.querySelector(".picture");
  const svg = frame.querySelector("svg");
  const spot = document.createElementNS(SVG, "circle");
  spot.setAttribute("class", "spot");
  spot.setAttribute("r", 6);
  spot.setAttribute("visibility", "hidden");
  svg.append(spot);
  const shown = new Set(series.keys());
  let at = null;

  const points = () => [...shown].sort((a, b) => a - b)
    .flatMap((index) => series[index].points);

  function tell(point, follow = false) {
    at = point;
    spot.setAttribute("visibility", point ? "visible" : "hidden");
    tip.hidden = !point;
    if (!point) return;
    const [x, y, text] = point;
    spot.setAttribute("cx", x);
    spot.setAttribute("cy", y);
    tip.textContent = text;
    let box = svg.getBoundingClientRect();
    const scale = box.width / width;
    if (follow) {
      // A picture wider than the window scrolls to its point.
      frame.scrollLeft = x * scale - frame.clientWidth / 2;
      box = svg.getBoundingClientRect();
    }
    const left = box.left + x * scale, top = box.top + y * scale;
    // Measured where it has room, as it is narrower at the edge.
    tip.style.left = "0px";
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    const beside = left + 14 > room ? left - 14 - tip.offsetWidth : left + 14;
    tip.style.left = `${scrollX + Math.max(Math.min(beside, room), 4)}px`;
    tip.style.top = `${Math.max(scrollY + top - tip.offsetHeight / 2, 0)}px`;
  }

  frame.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scale = box.width / width;
    const x = (event.clientX - box.left) / scale, y = (event.clientY - box.top) / scale;
    let best = null, least = 24 ** 2;
    for (const point of points()) {
      const gap = (point[0] - x) ** 2 + (point[1] - y) ** 2;
      if (gap < least) { best = point; least = gap; }
    }
    tell(best);
  });
  frame.addEventListener("pointerleave", () => tell(null));
  frame.addEventListener("blur", () => tell(null));
  frame.addEventListener("keydown", (event) => {
    const all = points();
    const here = all.indexOf(at);
    const moves = { ArrowRight: here + 1, ArrowLeft: here < 0 ? all.length - 1 : here - 1,
      Home: 0, End: all.length - 1 };
    if (event.key === "Escape") tell(null);
    if (!(event.key in moves) || !all.length) return;
    event.preventDefault();
    tell(all[(moves[event.key] + all.length) % all.length], true);
  });

  for (const [index, chip] of [...figure.querySelectorAll(".chips button")].entries()) {
    chip.addEventListener("click", () => {
      const visible = !shown.has(index);
      if (visible) shown.add(index); else shown.delete(index);
      chip.setAttribute("aria-pressed", visible);
      for (const id of series[index].ids)
        document.getElementById(id)?.setAttribute("visibility", visible ? "visible" : "hidden");
      tell(null);
    });
  }
}

function sortable(table) {
  const body = table.tBodies[0];
  for (const [index, head] of [...table.tHead.rows[0].cells].entries()) {
    head.querySelector("button")?.addEventListener("click", () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const key = (row) => row.cells[index].dataset.value ?? row.cells[index].textContent;
      const numeric = head.classList.contains("number");
      const rows = [...body.rows].sort((a, b) => {
        const one = key(a), other = key(b);
        if (!numeric) return sign * one.localeCompare(other);
        // What is not known comes last, either way.
        if (one === "" || other === "") return (one === "") - (other === "");
        return sign * (Number(one) - Number(other));
      });
      body.append(...rows);
    });
  }
}

function filterable(input) {
  const table = document.getElementById(input.getAttribute("aria-controls"));
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of table.tBodies[0].rows) {
      const text = [...row.cells].map((cell) => cell.textContent.toLowerCase());
      row.hidden = !words.every((word) => text.some((cell) => cell.includes(word)));
    }
  });
}

for (const [stem, picture] of Object.entries(pictures))
  readable(document.getElementById(`picture-${stem}`), picture);
document.querySelectorAll("table").forEach(sortable);
document.querySelectorAll(".filter").forEach(filterable);
// Paper has nothing to open.
const closed = [];
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details:not([open])")) { closed.push(each); each.open = true; }
});
addEventListener("afterprint", () => { for (const each of closed.splice(0)) each.open = false; });
