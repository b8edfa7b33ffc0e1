"use strict";
// What is seen of a picture while some boxes are closed and repeats are folded. Boxes are numbered from the outside in, so
// what is inside of a box has the numbers that follow its own, and the turns of a repeat are as long as each other.
function makeSeen(picture) {
  const boxes = picture.boxes;
  const closed = new Set(picture.closed);
  const unfolded = new Set();

  boxes.forEach((box, id) => { box.id = id; box.inside = []; box.size = 1; });
  for (const box of [...boxes].reverse()) {
    if (box.parent === null) continue;
    boxes[box.parent].size += box.size;
    boxes[box.parent].inside.unshift(box.id);
  }
  const isRepeat = (id) => boxes[id].turns > 1;
  const turnSize = (id) => (boxes[id].size - 1) / boxes[id].turns;
  const turnOf = (id, repeat) => Math.floor((id - repeat - 1) / turnSize(repeat));

  function around(id) {
    const found = [];
    for (let at = boxes[id].parent; at !== null; at = boxes[at].parent) found.unshift(at);
    return found;
  }

  const foldedAround = (id) => around(id).filter((each) => isRepeat(each) && !unfolded.has(each));

  function drawnFor(id) {
    for (;;) {
      const repeat = foldedAround(id).find((each) => turnOf(id, each) > 0);
      if (repeat === undefined) break;
      id = repeat + 1 + ((id - repeat - 1) % turnSize(repeat));
    }
    return around(id).find((each) => closed.has(each)) ?? id;
  }

  function inside(id) {
    const box = boxes[id];
    if (closed.has(id)) return [];
    if (!isRepeat(id) || unfolded.has(id)) return box.inside;
    const turn = box.inside.slice(0, box.inside.length / box.turns);
    const alone = turn.length === 1 && boxes[turn[0]].inside.length > 0;
    return alone ? inside(turn[0]) : turn;
  }

  function seenEdges() {
    const seen = new Map();
    for (const [from, to, label, status] of picture.edges) {
      const foldedTo = foldedAround(to);
      if (foldedAround(from).some((each) => foldedTo.includes(each) && turnOf(from, each) !== turnOf(to, each))) continue;
      const ends = [drawnFor(from), drawnFor(to)];
      if (ends[0] === ends[1]) continue;
      const key = [...ends, status].join(" ");
      if (!seen.has(key)) seen.set(key, { from: ends[0], to: ends[1], status, labels: new Set() });
      if (label) label.split("\n").forEach((line) => seen.get(key).labels.add(line));
    }
    return [...seen.values()];
  }

  function tagsOf(id) {
    const box = boxes[id];
    if (!closed.has(id)) return [...box.takes.map((tag) => ["take", tag]), ...box.gives.map((tag) => ["give", tag])];
    const end = id + box.size;
    const within = boxes.slice(id, end), outside = [...boxes.slice(0, id), ...boxes.slice(end)];
    const names = (some, side) => new Set(some.flatMap((each) => each[side].map((tag) => tag.name)));
    const given = names(within, "gives"), takenOutside = names(outside, "takes");
    const merged = new Map();
    for (const each of within) {
      for (const tag of each.takes) if (!given.has(tag.name)) merged.set(`take ${tag.name}`, ["take", { ...tag, part: "" }]);
      for (const tag of each.gives) if (takenOutside.has(tag.name)) merged.set(`give ${tag.name}`, ["give", tag]);
    }
    return [...merged.values()];
  }

  return { boxes, closed, unfolded, isRepeat, turnOf, around, foldedAround, drawnFor, inside, seenEdges, tagsOf };
}
