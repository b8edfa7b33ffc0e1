"use strict";
// Draws the picture that the page holds as data, and lets it be moved, folded and searched. Everything that comes from the
// model is put in as text, never as HTML.
(() => {
  const picture = JSON.parse(document.getElementById("picture").textContent);
  const seen = makeSeen(picture);
  const { boxes, closed, unfolded, isRepeat, turnOf, around, drawnFor, seenEdges } = seen;
  const layOut = makeLayout(seen);
  const svg = document.getElementById("canvas");
  const scene = document.getElementById("scene");
  let selected = null, litTag = null, hits = [], hit = -1;
  let moved = { x: 0, y: 0, scale: 1 };
  let drawn = new Map();

  // Drawing

  function make(name, attributes, parent, text) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  }

  function draw() {
    const { graph, edges, contents } = layOut();
    scene.replaceChildren();
    drawn = new Map();
    const frames = [...graph.nodes()].map(Number).filter((id) => graph.node(String(id)).frame).sort((a, b) => a - b);
    const titles = frames.map((id) => drawFrame(id, graph.node(String(id))));
    edges.forEach((edge, number) => drawEdge(edge, graph.edge(String(edge.from), String(edge.to), String(number))));
    // Not crossed out by edges that lead through a frame.
    scene.append(...titles);
    for (const [id, what] of contents) drawBox(id, what, graph.node(String(id)));
    mark();
  }

  function group(id, classes, at) {
    const box = boxes[id];
    const element = make("g", { class: ["box", box.role, box.status, ...classes].join(" "), "data-id": id }, scene);
    element.dataset.path = box.path;
    make("title", {}, element, box.path || box.name);
    make("rect", { x: at.x - at.width / 2, y: at.y - at.height / 2, width: at.width, height: at.height, rx: 6 }, element);
    drawn.set(id, { element, at });
    return element;
  }

  function drawFrame(id, at) {
    const box = boxes[id], left = at.x - at.width / 2, top = at.y - at.height / 2;
    const element = group(id, ["frame", `level-${around(id).length % 3}`], at);
    const handle = make("rect", { class: "handle", x: left, y: top, width: at.width, height: TITLE, style: "fill: transparent; stroke: none" }, element);
    handle.addEventListener("click", () => toggle(id));
    const title = make("g", { class: `box title ${box.status}` });
    const line = make("text", { x: left + 8, y: top + 14, "pointer-events": "none" }, title);
    make("tspan", { class: "name" }, line, box.name);
    const needed = width(box.name, NAME) + width(box.caption, SMALL) + (isRepeat(id) ? 75 : 24);
    if (box.caption && needed < at.width) make("tspan", { class: "caption", dx: 8 }, line, box.caption);
    if (isRepeat(id)) drawTurns(id, left + at.width - 8, top + 14, "end", title);
    return title;
  }

  function drawTurns(id, x, y, anchor, element) {
    const text = unfolded.has(id) ? `fold x${boxes[id].turns}` : `x${boxes[id].turns}`;
    const turns = make("text", { class: "turns", x, y, "text-anchor": anchor }, element, text);
    make("title", {}, turns, unfolded.has(id) ? "Fold to one" : "Show each of them");
    turns.addEventListener("click", (event) => { event.stopPropagation(); unfold(id); });
  }

  function drawBox(id, what, at) {
    const box = boxes[id];
    const within = boxes.slice(id + 1, id + box.size);
    const changed = within.some((each) => [each, ...each.takes, ...each.gives].some(({ status }) => status !== "same"));
    const classes = Object.entries({ closed: box.inside.length, changed, weights: box.weights, optional: box.optional, cache: box.cache })
      .filter(([, is]) => is).map(([name]) => name);
    const element = group(id, classes, at);
    let y = at.y - at.height / 2 + 16;
    const name = make("text", { class: "name handle", x: at.x, y, "text-anchor": "middle" }, element, what.name + (what.turns ? " " : ""));
    if (what.turns) drawTurns(id, at.x + width(what.name + " ", NAME) / 2 + 3, y, "start", element), name.setAttribute("x", at.x - 10);
    for (const line of what.lines) make("text", { class: "caption", x: at.x, y: (y += LINE) - 1, "text-anchor": "middle" }, element, line);
    y += 6;
    for (const tag of what.tags) {
      const length = width(tag.text, SMALL) + 10;
      const pill = make("g", { class: `tag ${tag.status}` }, element);
      pill.dataset.tag = tag.name;
      make("rect", { x: at.x - length / 2, y, width: length, height: TAG - 2, rx: 7 }, pill);
      make("text", { x: at.x, y: y + 10, "text-anchor": "middle" }, pill, tag.text);
      pill.addEventListener("click", (event) => { event.stopPropagation(); litTag = litTag === tag.name ? null : tag.name; mark(); });
      y += TAG;
    }
    element.addEventListener("click", () => (box.inside.length ? toggle(id) : select(id)));
  }

  function drawEdge(edge, at) {
    const element = make("g", { class: `edge ${edge.status}` }, scene);
    element.dataset.ends = `${edge.from} ${edge.to}`;
    const points = at.points;
    let path = `M${points[0].x},${points[0].y}`;
    for (let i = 1; i < points.length - 1; i++) {
      const next = points[i + 1], end = i === points.length - 2 ? next : { x: (points[i].x + next.x) / 2, y: (points[i].y + next.y) / 2 };
      path += `Q${points[i].x},${points[i].y} ${end.x},${end.y}`;
    }
    if (points.length === 2) path += `L${points[1].x},${points[1].y}`;
    make("path", { d: path, "marker-end": `url(#arrow-${edge.status})` }, element);
    [...edge.labels].forEach((line, number) => {
      make("text", { x: at.x - at.width / 2 + 4, y: at.y + 4 + (number - (edge.labels.size - 1) / 2) * 12 }, element, line);
    });
  }

  // What a person does

  function mark() {
    for (const [id, { element }] of drawn) {
      element.classList.toggle("selected", id === selected);
      element.classList.toggle("hit", hits.some((each) => drawnFor(each) === id));
    }
    for (const pill of scene.querySelectorAll(".tag")) pill.classList.toggle("lit", pill.dataset.tag === litTag);
    for (const edge of scene.querySelectorAll(".edge")) {
      edge.classList.toggle("lit", selected !== null && edge.dataset.ends.split(" ").includes(String(selected)));
    }
  }

  function select(id) {
    selected = selected === id ? null : id;
    const box = boxes[id];
    const flow = seenEdges().filter((edge) => edge.from === id || edge.to === id).map((edge) =>
      `${edge.from === id ? "→ " + boxes[edge.to].name : "← " + boxes[edge.from].name}  ${[...edge.labels].join(", ")}`);
    document.getElementById("details").textContent = [[box.path || box.name, box.caption].filter(Boolean).join("   "), flow.join("     ")].join("\n");
    mark();
  }

  // Draws anew, with what was clicked where it was.
  function change(id, how) {
    const before = drawn.get(id)?.at;
    how();
    draw();
    const after = drawn.get(drawnFor(id))?.at;
    if (before && after) {
      moved.x += (before.x - after.x) * moved.scale;
      moved.y += (before.y - before.height / 2 - after.y + after.height / 2) * moved.scale;
    }
    move();
  }

  function toggle(id) {
    change(id, () => (closed.has(id) ? closed.delete(id) : closed.add(id)));
  }

  function unfold(id) {
    change(id, () => {
      const members = boxes[id].inside.filter((each) => boxes[each].inside.length);
      closed.delete(id);
      if (unfolded.delete(id)) members.forEach((each) => closed.delete(each));
      else { unfolded.add(id); members.forEach((each) => closed.add(each)); }
    });
  }

  function reveal(id) {
    for (const each of around(id)) {
      if (isRepeat(each) && !unfolded.has(each) && turnOf(id, each) > 0) {
        unfolded.add(each);
        boxes[each].inside.filter((member) => boxes[member].inside.length).forEach((member) => closed.add(member));
      }
    }
    around(id).forEach((each) => closed.delete(each));
    draw();
    // A composite that alone repeats has no frame of its own.
    const { at } = drawn.get(drawnFor(id)) ?? drawn.get(boxes[id].parent);
    moved.scale = Math.max(moved.scale, 0.8);
    moved.x = svg.clientWidth / 2 - at.x * moved.scale;
    moved.y = svg.clientHeight / 2 - at.y * moved.scale;
    move();
  }

  function search(text) {
    const wanted = text.trim().toLowerCase();
    hits = wanted ? boxes.filter((box) => `${box.path} ${box.name} ${box.caption}`.toLowerCase().includes(wanted)).map((box) => box.id) : [];
    hit = -1;
    document.getElementById("found").textContent = wanted ? `${hits.length} found` : "";
    mark();
  }

  function next(step) {
    if (!hits.length) return;
    hit = (hit + step + hits.length) % hits.length;
    document.getElementById("found").textContent = `${hit + 1} of ${hits.length}`;
    reveal(hits[hit]);
    selected = null;
    select(hits[hit]);
  }

  function move() {
    scene.setAttribute("transform", `translate(${moved.x} ${moved.y}) scale(${moved.scale})`);
  }

  function fit() {
    const size = scene.getBBox();
    const scale = Math.min(svg.clientWidth / (size.width + 40), svg.clientHeight / (size.height + 40), 1);
    // Small print is no use: rather the top of it, at a size that can be read.
    moved.scale = Math.max(scale, Math.min(0.75, svg.clientWidth / (size.width + 40)));
    moved.x = (svg.clientWidth - size.width * moved.scale) / 2 - size.x * moved.scale;
    moved.y = Math.max((svg.clientHeight - size.height * moved.scale) / 2, 10) - size.y * moved.scale;
    move();
  }

  function zoom(factor, x, y) {
    const scale = Math.min(Math.max(moved.scale * factor, 0.05), 4);
    moved.x = x - (x - moved.x) * scale / moved.scale;
    moved.y = y - (y - moved.y) * scale / moved.scale;
    moved.scale = scale;
    move();
  }

  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const at = svg.getBoundingClientRect();
    zoom(Math.exp(-event.deltaY * 0.0015), event.clientX - at.left, event.clientY - at.top);
  }, { passive: false });
  let dragged = null;
  svg.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, y: event.clientY, far: false }; });
  window.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    const by = { x: event.clientX - dragged.x, y: event.clientY - dragged.y };
    if (!dragged.far && Math.hypot(by.x, by.y) < 4) return;
    moved.x += by.x;
    moved.y += by.y;
    dragged = { x: event.clientX, y: event.clientY, far: true };
    svg.classList.add("moving");
    move();
  });
  window.addEventListener("pointerup", () => {
    svg.classList.remove("moving");
    const far = dragged?.far;
    dragged = null;
    // The click that ends a drag is none.
    if (far) window.addEventListener("click", (event) => event.stopPropagation(), { capture: true, once: true });
  });
  const field = document.getElementById("search");
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") next(event.shiftKey ? -1 : 1); });
  window.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== field) { event.preventDefault(); field.focus(); }
  });
  document.getElementById("fit").addEventListener("click", fit);
  document.getElementById("open").addEventListener("click", () => { closed.clear(); unfolded.clear(); draw(); fit(); });
  document.getElementById("fold").addEventListener("click", () => {
    closed.clear();
    unfolded.clear();
    picture.closed.forEach((each) => closed.add(each));
    draw();
    fit();
  });

  for (const status of ["same", "added", "removed"]) {
    const arrow = make("marker", { id: `arrow-${status}`, class: status, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7,
      markerUnits: "userSpaceOnUse", orient: "auto" }, svg.querySelector("defs"));
    make("path", { d: "M0,0L8,4L0,8z" }, arrow);
  }
  if (picture.compared) {
    for (const status of ["added", "removed"]) {
      const note = document.createElement("span");
      note.className = status;
      note.textContent = `■ ${status}`;
      document.getElementById("legend").append(note);
    }
  }
  draw();
  fit();
})();
