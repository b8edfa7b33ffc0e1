"use strict";
// Where everything that is seen of a picture stands. dagre does most of it.
const NAME = "600 12px system-ui, sans-serif", SMALL = "10px ui-monospace, monospace";
const LINE = 14, TAG = 16, PADDING = 9, TITLE = 20;
const MANY = 200;
const ruler = document.createElement("canvas").getContext("2d");

function width(text, font) {
  ruler.font = font;
  return ruler.measureText(text).width;
}

function makeLayout({ boxes, isRepeat, foldedAround, inside, seenEdges, tagsOf }) {
  function linesOf(caption) {
    const lines = [];
    for (const part of caption ? caption.split(/, (?!\d+(?:, \d+)*\))/) : []) {
      const last = lines.length - 1;
      if (last >= 0 && lines[last].length + part.length < 34) lines[last] += ", " + part;
      else { if (last >= 0) lines[last] += ","; lines.push(part); }
    }
    return lines;
  }

  function content(id) {
    const box = boxes[id];
    const folded = foldedAround(id).length > 0;
    const tags = tagsOf(id).map(([side, tag]) => {
      const sign = side === "give" ? "→" : tag.updated ? "⇄" : "←";
      return { ...tag, text: `${sign} ${tag.name}${tag.part && folded ? "[…]" : tag.part}` };
    });
    const isEnd = box.role === "input" || box.role === "output";
    const caption = isEnd ? `${box.optional ? "optional " : ""}${box.role}${box.caption ? ": " + box.caption : ""}` : box.caption;
    const name = box.inside.length ? `+ ${box.name}` : box.name;
    const turns = isRepeat(id) ? `  x${box.turns}` : "";
    const lines = linesOf(caption);
    const widest = Math.max(width(name + turns, NAME), ...lines.map((line) => width(line, SMALL)),
      ...tags.map((tag) => width(tag.text, SMALL) + 10));
    const height = 17 + lines.length * LINE + tags.length * TAG + (box.role === "function" && !tags.length ? 3 : PADDING);
    return { name, turns, lines, tags, width: Math.max(widest + 2 * PADDING, 26), height };
  }

  // Branches stand in the order in which they are called, rather than the other way round, where the layout allows it.
  function layOut() {
    const edges = seenEdges();
    let made = tryLayout(edges, "r");
    if (made.contents.size < MANY && disorder(made.graph) > 0) {
      const mirrored = tryLayout(edges, "l");
      mirror(mirrored.graph);
      if (disorder(mirrored.graph) < disorder(made.graph)) made = mirrored;
    }
    makeRoom(made.graph);
    putInColumns(made.graph, made.apart);
    putAtEnds(made.graph, made.apart);
    return { ...made, edges };
  }

  function tryLayout(edges, labelpos) {
    const graph = new dagre.graphlib.Graph({ compound: true, multigraph: true });
    graph.setGraph({ rankdir: "TB", nodesep: 22, edgesep: 14, ranksep: 26, marginx: 20, marginy: 20 });
    const contents = new Map();
    const place = (id, parent) => {
      const seen = inside(id);
      if (seen.length) {
        graph.setNode(String(id), { frame: true });
        seen.forEach((each) => place(each, id));
      } else {
        contents.set(id, content(id));
        graph.setNode(String(id), { width: contents.get(id).width, height: contents.get(id).height });
      }
      if (parent !== null) graph.setParent(String(id), String(parent));
    };
    boxes.filter((box) => box.parent === null).forEach((box) => place(box.id, null));
    edges.forEach((edge, number) => {
      const labels = [...edge.labels];
      graph.setEdge(String(edge.from), String(edge.to), {
        width: Math.max(0, ...labels.map((line) => width(line, SMALL))) + 6, height: labels.length * 12, labelpos,
        labeloffset: 4, weight: 3,
      }, String(number));
    });
    // Outputs stand at the end, also those that are there early.
    const toOutputs = edges.filter((edge) => boxes[edge.to].role === "output");
    const last = Math.max(...toOutputs.map((edge) => edge.from));
    for (const { from, to } of toOutputs) {
      if (from !== last) graph.setEdge(String(last), String(to), { weight: 0 }, "guide");
    }
    const apart = takeApart(graph, edges);
    dagre.layout(graph);
    return { graph, contents, apart };
  }

  // How many more boxes side by side are against their order than in it.
  function disorder(graph) {
    const leaves = graph.nodes().filter((id) => !graph.node(id).frame).map((id) => ({ id: Number(id), parent: graph.parent(id), ...graph.node(id) }));
    let against = 0;
    for (const one of leaves) {
      for (const other of leaves) {
        if (one.id >= other.id || one.parent !== other.parent || Math.abs(one.y - other.y) > 1) continue;
        against += one.x > other.x ? 1 : -1;
      }
    }
    return against;
  }

  function mirror(graph) {
    for (const node of graph.nodes().map((id) => graph.node(id))) node.x = -node.x;
    for (const edge of graph.edges().map((each) => graph.edge(each))) {
      edge.points.forEach((point) => { point.x = -point.x; });
      edge.x = -(edge.x ?? 0);
    }
  }

  // A frame needs room for its title: everything below the top of one moves down.
  function makeRoom(graph) {
    const nodes = graph.nodes().map((id) => graph.node(id));
    const top = (node) => Math.round(node.y - node.height / 2);
    const tops = [...new Set(nodes.filter((node) => node.frame).map(top))].sort((a, b) => a - b);
    const lower = (y) => y + (TITLE - 8) * tops.filter((each) => each < Math.round(y)).length;
    for (const node of nodes) {
      if (!node.frame) { node.y = lower(node.y); continue; }
      const ends = [lower(top(node)), lower(node.y + node.height / 2)];
      node.y = (ends[0] + ends[1]) / 2;
      node.height = ends[1] - ends[0];
    }
    for (const edge of graph.edges().map((each) => graph.edge(each))) {
      edge.points.forEach((point) => { point.y = lower(point.y); });
      edge.y = lower(edge.y ?? 0);
    }
  }

  // What no edge holds is not laid out with the others: inputs and outputs stand in a row at the ends, and what is made
  // for all in a frame (a mask, a table) in a column at the left of it.
  function takeApart(graph, edges) {
    const held = new Set(edges.flatMap((edge) => [String(edge.from), String(edge.to)]));
    const isLoose = (id) => !held.has(id) && !graph.node(id).frame;
    const apart = [];
    for (const id of graph.nodes()) {
      const parent = graph.parent(id), role = boxes[id].role;
      if (!isLoose(id) || (parent === undefined && role !== "input" && role !== "output")) continue;
      if (parent !== undefined && graph.children(parent).every(isLoose)) continue;
      apart.push({ id, role, parent, node: graph.node(id) });
    }
    apart.forEach(({ id }) => graph.removeNode(id));
    return apart;
  }

  // Makes room at the left of a frame by moving all that is right of there.
  function putInColumns(graph, apart) {
    for (const parent of new Set(apart.map((each) => each.parent))) {
      if (parent === undefined) continue;
      const column = apart.filter((each) => each.parent === parent), frame = graph.node(parent);
      const room = Math.max(...column.map(({ node }) => node.width)) + 16, left = frame.x - frame.width / 2;
      const further = (x) => x + (x > left + 1 ? room : 0);
      for (const node of graph.nodes().map((id) => graph.node(id))) {
        if (!node.frame) { node.x = further(node.x); continue; }
        const ends = [further(node.x - node.width / 2), further(node.x + node.width / 2)];
        node.x = (ends[0] + ends[1]) / 2;
        node.width = ends[1] - ends[0];
      }
      for (const edge of graph.edges().map((each) => graph.edge(each))) {
        edge.points.forEach((point) => { point.x = further(point.x); });
        edge.x = further(edge.x ?? 0);
      }
      let y = frame.y - frame.height / 2 + TITLE + 6;
      for (const { id, node } of column) {
        graph.setNode(id, { ...node, x: left + 8 + room / 2, y: y + node.height / 2 });
        graph.setParent(id, parent);
        y += node.height + 10;
      }
      // Of a low frame and those around it.
      for (let each = parent; each !== undefined; each = graph.parent(each), y += 6) {
        const around = graph.node(each), lack = y - (around.y + around.height / 2);
        if (lack > 0) { around.y += lack / 2; around.height += lack; }
      }
    }
  }

  function putAtEnds(graph, apart) {
    const nodes = graph.nodes().map((id) => graph.node(id));
    const least = (some) => Math.min(Infinity, ...some), most = (some) => Math.max(-Infinity, ...some);
    for (const role of ["input", "output"]) {
      const row = apart.filter((each) => each.parent === undefined && each.role === role);
      if (!row.length) continue;
      const beside = graph.nodes().filter((id) => boxes[id].role === role).map((id) => graph.node(id));
      const height = most(row.map(({ node }) => node.height));
      let y = least(nodes.map((node) => node.y - node.height / 2)) - height / 2 - 24;
      const length = row.reduce((sum, { node }) => sum + node.width + 22, -22);
      let x = (least(nodes.map((node) => node.x - node.width / 2)) + most(nodes.map((node) => node.x + node.width / 2)) - length) / 2;
      if (role === "output" && beside.length) {
        x = most(beside.map((node) => node.x + node.width / 2)) + 22;
        y = most(beside.map((node) => node.y));
      }
      for (const { id, node } of row) {
        graph.setNode(id, { ...node, x: x + node.width / 2, y });
        x += node.width + 22;
      }
    }
  }

  return layOut;
}
