// The page of `cariama-hex serve`. It holds the game tree and draws it. The rules are in the program:
// POST /game returns the position of a game, and POST /search streams the state of a search.
"use strict";

const $ = (id) => document.getElementById(id);
const kUnit = 100; // distance between the centres of two neighbours, in the units of the board
const kStorage = "cariama-hex";
const kCurveSeconds = 0.7; // search time for each position of the win-rate curve
const kRows = 8; // number of listed candidate moves
const kColor = { b: "Black", w: "White" };

// The game tree. nodes[0] is the start; `next` is the child that "forward" leads to. `rate` is the
// win rate of Black that the last search of the node has found.
let game = newGame(11, true);
let settings = { engine: "", seconds: "3", heat: true };
let analysing = false;
let engineFollows = false; // the engine plays its side until the user navigates
let position = null; // of game.here, as the program describes it
let cells = new Map(); // name of a cell -> its elements
let focused = "a1"; // the cell that the Tab key reaches
let hovered = null; // the row or the cell whose continuation is drawn
let shown = 0; // number of the last call of show()
let job = null; // the search of this tab: {kind, index, controller}
const positions = new Map(); // node -> promise of its position
const views = new Map(); // node -> state of its last search
let processes = [];

function newGame(cols, swap) {
  return { cols, rows: cols, swap, start: { black: [], white: [], to_move: "b" }, info: {},
    nodes: [{ parent: -1, color: "", move: "", comment: "", children: [], next: 0, rate: null }], here: 0 };
}

function draw(name, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

// ---- SGF

function escaped(text) { return text.replace(/[\\\]:]/g, "\\$&"); }

function sgfHead(names) {
  const { cols, rows, start, info } = game;
  let text = `(;FF[4]GM[11]CA[UTF-8]AP[Cariama]SZ[${cols === rows ? cols : cols + ":" + rows}]`;
  if (names) {
    for (const [key, value] of Object.entries({ PB: info.black, PW: info.white, RE: info.result, DT: info.date,
      C: game.nodes[0].comment })) if (value) text += `${key}[${escaped(value)}]`;
  }
  for (const [key, stones] of [["AB", start.black], ["AW", start.white]]) {
    if (stones.length) text += key + stones.map((cell) => `[${cell}]`).join("");
  }
  if (start.black.length || start.white.length || start.to_move === "w") text += `PL[${start.to_move.toUpperCase()}]`;
  return text;
}

function sgfMove(node) { return `;${node.color.toUpperCase()}[${node.move}]`; }

// The moves from the start to a node, as node numbers without the start.
function lineTo(index) {
  const line = [];
  for (let i = index; i > 0; i = game.nodes[i].parent) line.unshift(i);
  return line;
}
// As lineTo(), continued to the end of the line that "forward" follows.
function wholeLine() {
  const line = lineTo(game.here);
  for (let i = game.here; game.nodes[i].children.length; line.push(i)) i = forward(i);
  return line;
}
function forward(index) {
  const { children, next } = game.nodes[index];
  return children[Math.min(next, children.length - 1)];
}

function sgfOf(index) { return sgfHead(false) + lineTo(index).map((i) => sgfMove(game.nodes[i])).join("") + ")"; }

function sgfTree() {
  const write = (index) => {
    let text = "";
    for (let i = index;;) {
      const node = game.nodes[i];
      if (i > 0) text += sgfMove(node) + (node.comment ? `C[${escaped(node.comment)}]` : "");
      if (node.children.length !== 1) return text + node.children.map((child) => `\n(${write(child)})`).join("");
      i = node.children[0];
    }
  };
  return sgfHead(true) + write(0) + ")\n";
}

// ---- Requests

function post(path, body, signal) {
  return fetch(`${path}${path.includes("?") ? "&" : "?"}swap=${game.swap ? 1 : 0}`,
    { method: "POST", body, signal, headers: { "Content-Type": "text/plain" } });
}

async function readGame(sgf) {
  const response = await post("game", sgf);
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

function positionOf(index) {
  if (!positions.has(index)) {
    const promise = readGame(sgfOf(index)).then((read) => read.position);
    promise.catch(() => positions.delete(index));
    positions.set(index, promise);
  }
  return positions.get(index);
}

// Searches a node. Calls onView for each state, and returns the last one.
async function search(index, parameters, onView, signal) {
  const response = await post(`search?${new URLSearchParams(parameters)}`, sgfOf(index), signal);
  if (!response.ok) throw new Error((await response.text()).trim());
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let view = null;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    const last = lines.filter((line) => line).pop();
    if (!last) continue;
    view = JSON.parse(last);
    onView(view);
  }
  if (!view || !view.ended) throw new TypeError("The search was interrupted.");
  return view;
}

function notice(text) {
  const element = $("notice");
  element.textContent = text;
  element.hidden = !text;
  clearTimeout(notice.timer);
  if (text) notice.timer = setTimeout(() => notice(""), 8000);
}

// ---- Searches of this tab: one at a time

function stopJob() {
  if (job) job.controller.abort();
  job = null;
}

// Runs `body(signal, onView)` as the job of this tab. The job ends when another one begins. A search
// lives as long as its connection, so a hidden tab does not search: resume() continues.
async function run(kind, index, body) {
  stopJob();
  if (document.hidden) return;
  const mine = { kind, index, controller: new AbortController(), ahead: 0 };
  job = mine;
  renderControls();
  try {
    await body(mine);
    if (job === mine) job = null;
  } catch (error) {
    if (job !== mine) return;
    job = null;
    if (error instanceof TypeError) { // the connection is lost
      notice("cariama-hex does not answer. Is the program running?");
      setTimeout(() => { if (!job) resume(); }, 2000);
    } else if (error.name !== "AbortError") {
      notice(error.message);
      analysing = false;
      engineFollows = false;
    }
  }
  renderControls();
  renderStatus();
}

function onView(mine, index) {
  return (view) => {
    if (job !== mine) return;
    mine.ahead = view.ahead;
    if (view.processes.length) processes = view.processes;
    if (view.moves.length) {
      views.set(index, view);
      const rate = view.moves[0].win_rate;
      game.nodes[index].rate = view.color === "b" ? rate : 1 - rate;
    }
    renderStatus();
    renderProcesses();
    renderCurve();
    if (index === game.here) renderView();
  };
}

function analyse() {
  const index = game.here;
  return run("analyse", index, async (mine) => {
    await search(index, {}, onView(mine, index), mine.controller.signal);
    save();
  });
}

function engineMove() {
  const index = game.here;
  return run("engine", index, async (mine) => {
    const view = await search(index, { seconds: settings.seconds, choose: 1 }, onView(mine, index),
      mine.controller.signal);
    if (job !== mine) return;
    job = null;
    await play(view.chosen);
  });
}

// begun: the curve continues where it was interrupted.
function analyseGame(begun = false) {
  return run("curve", -1, async (mine) => {
    for (const index of [0, ...wholeLine()]) {
      const { winner } = await positionOf(index);
      if (job !== mine) return;
      if (winner) game.nodes[index].rate = winner === "b" ? 1 : 0;
      else if (!begun || game.nodes[index].rate === null) {
        await search(index, { seconds: kCurveSeconds }, onView(mine, index), mine.controller.signal);
      }
      if (job !== mine) return;
      renderCurve();
    }
    save();
  }).then(() => { if (!job) resume(); });
}

// Starts what this tab should do now: a move of the engine, or the analysis.
function resume() {
  if (!position || position.winner || document.hidden) return;
  if (engineFollows && settings.engine.includes(position.to_move)) engineMove();
  else if (analysing) analyse();
}

// ---- Moves

async function show(index) {
  const call = ++shown;
  if (job && job.kind !== "curve") stopJob();
  game.here = index;
  for (let i = index; i > 0; i = game.nodes[i].parent) {
    const parent = game.nodes[game.nodes[i].parent];
    parent.next = parent.children.indexOf(i);
  }
  save();
  try {
    const read = await positionOf(index);
    if (call !== shown) return;
    position = read;
  } catch (error) {
    if (call !== shown) return;
    notice(error instanceof TypeError ? "cariama-hex does not answer. Is the program running?" : error.message);
    if (error instanceof TypeError) setTimeout(() => { if (call === shown) show(index); }, 2000);
    return;
  }
  notice("");
  render();
  if (position.winner) stopJob();
  if (!job) resume();
  renderControls();
}

async function play(move) {
  if (!position || position.winner) return;
  if (move === "swap-pieces" ? !position.may_swap : !cells.has(move) || stoneAt(move)) return;
  const parent = game.nodes[game.here];
  let index = parent.children.find((child) => game.nodes[child].move === move);
  if (index === undefined) {
    index = game.nodes.length;
    game.nodes.push({ parent: game.here, color: position.to_move, move, comment: "", children: [], next: 0, rate: null });
    parent.children.push(index);
  }
  if (cells.has(move)) setFocus(move, false);
  engineFollows = true;
  await show(index);
}

// Takes back the last move, and with it the engine's answer.
function undo() {
  stopJob();
  let index = game.here;
  const side = settings.engine.length === 1 ? settings.engine : "";
  do {
    if (index === 0) break;
    const { parent, children, color } = game.nodes[index];
    if (!children.length) { // the node stays in the list: numbers of nodes do not change
      const siblings = game.nodes[parent].children;
      siblings.splice(siblings.indexOf(index), 1);
    }
    index = parent;
    if (color !== side) break;
  } while (true);
  engineFollows = false;
  show(index);
}

function navigate(index) {
  engineFollows = false;
  show(index);
}

function begin(next) {
  stopJob();
  game = next;
  positions.clear();
  views.clear();
  focused = "a1";
  hovered = null;
  buildBoard();
  return show(game.here);
}

function stoneAt(cell) { return position.black.includes(cell) ? "b" : position.white.includes(cell) ? "w" : ""; }

// ---- The board

// On narrow screens the long diagonal is vertical, so that the cells are larger.
const narrow = matchMedia("(max-width: 860px) and (orientation: portrait)");

function column(index) {
  return index < 26 ? String.fromCharCode(97 + index) : "a" + String.fromCharCode(71 + index);
}
function cellName(col, row) { return column(col) + (row + 1); }

function buildBoard() {
  const board = $("board");
  board.replaceChildren();
  cells = new Map();
  const { cols, rows } = game;
  const turn = narrow.matches ? 60 : 0; // degrees
  const at = (degrees, length) => {
    const angle = ((degrees + turn) * Math.PI) / 180;
    return [Math.cos(angle) * length, Math.sin(angle) * length];
  };
  const center = (col, row) => {
    const [x1, y1] = at(0, kUnit * col);
    const [x2, y2] = at(60, kUnit * row);
    return [x1 + x2, y1 + y2];
  };
  // The corner of a cell at the begin (end = -1) or the end (1) of the side towards the neighbour
  // number `side`, clockwise from the right; 0: the middle of the side.
  const corner = ([x, y], side, end) => {
    const [dx, dy] = at(60 * side + 30 * end, end === 0 ? kUnit / 2 : kUnit / Math.sqrt(3));
    return `${(x + dx).toFixed(1)},${(y + dy).toFixed(1)}`;
  };
  // The rim, clockwise. In the obtuse corners of the board a side of a cell belongs half to each player.
  const rim = (count, cellAt, sides, color) => {
    const points = [];
    for (let i = 0; i < count; ++i) {
      const cell = cellAt(i);
      sides.forEach((side, half) => {
        const begin = half === 0 && i === 0 && side % 3 === 2 ? 0 : -1;
        points.push(corner(cell, side, begin), corner(cell, side, half === 1 && i === count - 1 && side % 3 === 2 ? 0 : 1));
      });
    }
    return { color, points };
  };
  const rims = [rim(cols, (i) => center(i, 0), [4, 5], "black"),
    rim(rows, (i) => center(cols - 1, i), [5, 0], "white"),
    rim(cols, (i) => center(cols - 1 - i, rows - 1), [1, 2], "black"),
    rim(rows, (i) => center(0, rows - 1 - i), [2, 3], "white")];
  draw("path", { class: "rim outline", d: `M${rims.flatMap(({ points }) => points).join("L")}Z` }, board);
  for (const { color, points } of rims) draw("path", { class: `rim ${color}`, d: `M${points.join("L")}` }, board);
  const labels = draw("g", { "aria-hidden": "true" }, board);
  let box = [Infinity, Infinity, -Infinity, -Infinity];
  for (let row = 0; row < rows; ++row) {
    const group = draw("g", { role: "row" }, board);
    for (let col = 0; col < cols; ++col) {
      const middle = center(col, row);
      const name = cellName(col, row);
      box = [Math.min(box[0], middle[0]), Math.min(box[1], middle[1]), Math.max(box[2], middle[0]), Math.max(box[3], middle[1])];
      if (row === 0) {
        const [dx, dy] = at(240, kUnit * 1.08);
        draw("text", { class: "label", x: middle[0] + dx, y: middle[1] + dy }, labels, column(col));
      }
      if (col === 0) {
        const [dx, dy] = at(180, kUnit * 1.12);
        draw("text", { class: "label", x: middle[0] + dx, y: middle[1] + dy }, labels, row + 1);
      }
      const cell = draw("g", { class: "cell", role: "gridcell", tabindex: -1, "data-cell": name,
        transform: `translate(${middle[0].toFixed(1)} ${middle[1].toFixed(1)})` }, group);
      const points = [0, 1, 2, 3, 4, 5].map((side) => corner([0, 0], side, 1)).join(" ");
      draw("polygon", { class: "hex", points }, cell);
      cells.set(name, { cell, col, row, heat: draw("polygon", { class: "heat", points, opacity: 0 }, cell),
        rate: draw("text", { class: "rate" }, cell), stone: draw("g", {}, cell), ghost: draw("g", {}, cell) });
    }
  }
  const margin = kUnit * 1.35;
  board.setAttribute("viewBox", [box[0] - margin, box[1] - margin * 0.95, box[2] - box[0] + 2 * margin,
    box[3] - box[1] + 1.9 * margin].map((value) => value.toFixed(1)).join(" "));
  board.setAttribute("aria-rowcount", rows);
  board.setAttribute("aria-colcount", cols);
  document.querySelector("[data-axis=b]").textContent = turn ? "upper right and lower left" : "top and bottom";
  document.querySelector("[data-axis=w]").textContent = turn ? "upper left and lower right" : "left and right";
  setFocus(cells.has(focused) ? focused : "a1", false);
}

function setFocus(name, move) {
  cells.get(focused)?.cell.setAttribute("tabindex", -1);
  focused = name;
  const { cell } = cells.get(name);
  cell.setAttribute("tabindex", 0);
  if (move) cell.focus();
}

function drawStone(parent, color, radius) {
  draw("circle", { class: `stone ${color}`, r: radius }, parent);
  draw("circle", { class: `ring ${color}`, r: radius * 0.62 }, parent);
}

function renderPosition() {
  const chain = new Set(position.chain);
  const last = game.nodes[game.here].move;
  for (const [name, { cell, stone }] of cells) {
    const color = stoneAt(name);
    stone.replaceChildren();
    if (color) drawStone(stone, color, 40);
    if (chain.has(name)) draw("circle", { class: "chain", r: 45 }, stone);
    else if (name === last) draw("circle", { class: "mark", r: 11 }, stone);
    cell.setAttribute("aria-disabled", Boolean(color || position.winner));
  }
}

// From the colour of a loss over that of an even game to that of a win. Most rates are near 50 %,
// so the scale ends at 20 % and 80 %.
function heatColor(rate) {
  const at = Math.min(1, Math.max(-1, (rate - 0.5) / 0.3));
  return `color-mix(in oklch, var(${at < 0 ? "--loss" : "--win"}) ${(100 * Math.abs(at)).toFixed(0)}%, var(--even))`;
}

function percent(move) {
  return move.proven === undefined ? `${(100 * move.win_rate).toFixed(1)} %` : move.proven ? "win" : "loss";
}

// Draws the results of the search of this node: heat map, candidate moves, continuation.
function renderView() {
  const view = views.get(game.here);
  const moves = (position && !position.winner && view?.moves) || [];
  const most = Math.max(1, ...moves.map((move) => move.visits));
  const byCell = new Map(moves.map((move, i) => [move.move, { ...move, i }]));
  for (const [name, { cell, heat, rate }] of cells) {
    const move = byCell.get(name);
    const color = position ? stoneAt(name) : "";
    let label = `${name}, ${color ? kColor[color] : "empty"}`;
    let opacity = 0;
    let text = "";
    if (move && settings.heat) {
      const share = move.visits / most;
      opacity = 0.06 + 0.7 * Math.cbrt(share);
      heat.style.fill = heatColor(move.win_rate);
      if (move.proven !== undefined) text = move.proven ? "win" : "✕";
      else if (share >= 0.01 || move.i < kRows) text = (100 * move.win_rate).toFixed(0);
      label += `, wins ${percent(move)}, ${move.visits} visits`;
    }
    heat.setAttribute("opacity", opacity.toFixed(3));
    heat.setAttribute("class", move && settings.heat && move.i === 0 ? "heat first" : "heat");
    rate.textContent = text;
    cell.setAttribute("aria-label", label);
  }
  $("moves-empty").hidden = moves.length > 0;
  $("moves").hidden = moves.length === 0;
  const body = $("moves").tBodies[0];
  while (body.rows.length < kRows) addRow(body);
  for (let i = 0; i < kRows; ++i) {
    const row = body.rows[i];
    const move = moves[i];
    row.hidden = !move;
    if (!move) continue;
    row.dataset.move = move.move;
    row.cells[0].textContent = move.move === "swap-pieces" ? "swap" : move.move;
    row.cells[1].textContent = percent(move);
    row.cells[2].firstChild.textContent = compact(move.visits);
    row.cells[2].lastChild.style.width = `${(100 * move.visits) / most}%`;
    row.cells[3].textContent = (move.line || []).slice(1, 9).join(" ");
  }
  $("effort").textContent = view && moves.length
    ? `${compact(view.iterations)} iterations in ${view.seconds.toFixed(1)} s` : "";
  renderLine();
}

function addRow(body) {
  const row = body.insertRow();
  row.tabIndex = 0;
  for (let i = 0; i < 4; ++i) row.insertCell();
  row.cells[2].append(document.createElement("span"), document.createElement("span"));
  row.cells[2].lastChild.className = "share";
  const enter = () => { hovered = row; renderLine(); };
  const leave = () => { hovered = null; renderLine(); };
  row.addEventListener("pointerenter", enter);
  row.addEventListener("focus", enter);
  row.addEventListener("pointerleave", leave);
  row.addEventListener("blur", leave);
  row.addEventListener("click", () => play(row.dataset.move));
  row.addEventListener("keydown", (event) => { if (event.key === "Enter") play(row.dataset.move); });
}

// Draws the expected continuation of the candidate under the pointer or with the focus.
function renderLine() {
  for (const { ghost } of cells.values()) if (ghost.firstChild) ghost.replaceChildren();
  const name = hovered instanceof HTMLElement ? hovered.dataset.move : hovered;
  const move = name && position && !position.winner && views.get(game.here)?.moves.find((one) => one.move === name);
  if (!move || !move.line) return;
  let color = position.to_move;
  move.line.slice(0, 16).forEach((step, i) => {
    const cell = cells.get(step);
    if (cell) {
      const ghost = draw("g", { class: `ghost ${color}` }, cell.ghost);
      draw("circle", { class: `stone ${color}`, r: 38 }, ghost);
      draw("text", {}, ghost, i + 1);
    }
    color = color === "b" ? "w" : "b";
  });
}

function compact(number) {
  return number < 10000 ? String(Math.round(number)) : number < 1e6 ? `${(number / 1000).toFixed(0)} k`
    : `${(number / 1e6).toFixed(1)} M`;
}

// ---- The panels

function renderStatus() {
  if (!position) return;
  const winner = position.winner;
  const side = winner || position.to_move;
  $("turn").replaceChildren();
  draw("circle", { class: `stone ${side}`, r: 90 }, $("turn"));
  let text = winner ? `${kColor[winner]} wins` : `${kColor[side]} to move`;
  if (game.here > 0) text = `Move ${lineTo(game.here).length} · ${text}`;
  if (job?.ahead > 0) text += ` · waits for ${job.ahead === 1 ? "another search" : `${job.ahead} other searches`}`;
  else if (job?.kind === "engine") text += " · the engine thinks";
  else if (job?.kind === "curve") text += " · the game is analysed";
  else if (position.may_swap) text += " or to swap";
  if ($("status-text").textContent !== text) $("status-text").textContent = text;
}

function renderControls() {
  const over = !position || Boolean(position.winner);
  const thinking = job?.kind === "engine";
  const curve = job?.kind === "curve";
  $("analyse").textContent = analysing ? "Stop" : "Analyse";
  $("analyse").setAttribute("aria-pressed", analysing);
  $("analyse").disabled = over && !analysing;
  $("engine").textContent = thinking ? "Stop engine" : "Engine move";
  $("engine").disabled = over;
  $("undo").disabled = game.here === 0;
  $("swap").disabled = over || !position.may_swap;
  $("curve-run").textContent = curve ? "Stop" : "Analyse game";
  $("curve-run").setAttribute("aria-pressed", curve);
  const line = wholeLine();
  const at = lineTo(game.here).length;
  $("slider").max = line.length;
  $("slider").value = at;
  $("slider").setAttribute("aria-valuetext", at === 0 ? "start" : `move ${at}: ${game.nodes[game.here].move}`);
  for (const id of ["first", "previous"]) $(id).disabled = at === 0;
  for (const id of ["next", "last"]) $(id).disabled = at === line.length;
}

function renderProcesses() {
  const body = $("processes").tBodies[0];
  $("processes").hidden = processes.length === 0;
  $("processes-empty").hidden = processes.length > 0;
  while (body.rows.length > processes.length) body.deleteRow(-1);
  processes.forEach((load, rank) => {
    let row = body.rows[rank];
    if (!row) {
      row = body.insertRow();
      for (let i = 0; i < 4; ++i) row.insertCell();
      const bar = document.createElement("span");
      bar.className = "bar";
      bar.append(document.createElement("i"));
      row.cells[2].append(document.createElement("span"), bar);
    }
    row.cells[0].textContent = load.alive ? rank : `${rank} (ended)`;
    row.cells[1].textContent = compact(load.iterations);
    row.cells[2].firstChild.textContent = `${(100 * load.idle).toFixed(0)} %`;
    row.cells[2].lastChild.firstChild.style.width = `${100 * load.idle}%`;
    row.cells[3].textContent = compact(load.messages);
  });
}

function renderCurve() {
  const curve = $("curve");
  const width = curve.clientWidth || 300;
  const height = 110;
  const left = 34;
  const line = [0, ...wholeLine()];
  const x = (i) => left + ((width - left - 6) * i) / Math.max(1, line.length - 1);
  const y = (rate) => 8 + (height - 26) * (1 - rate);
  curve.setAttribute("viewBox", `0 0 ${width} ${height}`);
  curve.replaceChildren();
  for (const rate of [0, 0.5, 1]) {
    draw("line", { class: rate === 0.5 ? "half" : "grid", x1: left, x2: width - 6, y1: y(rate), y2: y(rate) }, curve);
    draw("text", { x: 0, y: y(rate) + 4 }, curve, `${100 * rate} %`);
  }
  const at = line.indexOf(game.here);
  draw("line", { class: "here", x1: x(at), x2: x(at), y1: y(1) - 4, y2: y(0) + 4 }, curve);
  const known = line.map((index, i) => [i, game.nodes[index].rate]).filter(([, rate]) => rate !== null);
  const points = known.map(([i, rate]) => `${x(i).toFixed(1)},${y(rate).toFixed(1)}`);
  if (points.length > 1) draw("polyline", { class: "line", points: points.join(" ") }, curve);
  if (line.length < 60 || points.length === 1) {
    for (const [i, rate] of known) draw("circle", { class: "dot", cx: x(i), cy: y(rate), r: 2.6 }, curve);
  }
  draw("text", { x: left, y: height - 2 }, curve, "start");
  draw("text", { x: width - 6, y: height - 2, "text-anchor": "end" }, curve, `move ${line.length - 1}`);
  const describe = ([i, rate]) => `${i === 0 ? "start" : `move ${i}`} ${(100 * rate).toFixed(0)} %`;
  curve.setAttribute("aria-label", known.length === 0 ? "No move has been analysed"
    : `Win rate of Black: ${known.slice(-12).map(describe).join(", ")}`);
}

function renderTree() {
  const tree = $("tree");
  tree.replaceChildren();
  const step = 27;
  const links = draw("g", {}, tree);
  const places = new Map();
  let lowest = 0;
  let depth = 0;
  // Depth first: the first child stays in the row of its parent, each other one gets a new row.
  const open = [[0, 0, -1]];
  while (open.length) {
    const [index, column, parentRow] = open.pop();
    const node = game.nodes[index];
    const first = index === 0 || game.nodes[node.parent].children[0] === index;
    const row = index === 0 ? 0 : first ? parentRow : ++lowest;
    depth = Math.max(depth, column);
    const px = 15 + column * step;
    const py = 15 + row * step;
    places.set(index, [px, py]);
    if (index > 0) {
      const [qx, qy] = places.get(node.parent);
      draw("path", { class: "link", d: `M${qx} ${qy}V${py - (first ? 0 : 8)}${first ? "" : `Q${qx} ${py} ${qx + 8} ${py}`}H${px}` }, links);
    }
    const label = index === 0 ? "Start" : `Move ${column}, ${kColor[node.color]} ${node.move}`;
    const group = draw("g", { class: `node ${node.color || "root"}${index === game.here ? " here" : ""}`,
      transform: `translate(${px} ${py})`, role: "button", "aria-label": label, "data-node": index }, tree);
    if (index === game.here) group.setAttribute("aria-current", "true");
    draw("circle", { r: 11 }, group);
    draw("text", {}, group, index === 0 ? "" : node.move === "swap-pieces" ? "⇄" : node.move);
    for (let i = node.children.length - 1; i >= 0; --i) open.push([node.children[i], column + 1, row]);
  }
  tree.setAttribute("width", 30 + depth * step);
  tree.setAttribute("height", 30 + lowest * step);
  const box = $("tree-box");
  const [hx, hy] = places.get(game.here);
  if (hx < box.scrollLeft + 20 || hx > box.scrollLeft + box.clientWidth - 30) box.scrollLeft = hx - box.clientWidth / 2;
  if (hy < box.scrollTop + 20 || hy > box.scrollTop + box.clientHeight - 20) box.scrollTop = hy - box.clientHeight / 2;
}

function render() {
  renderPosition();
  renderView();
  renderStatus();
  renderControls();
  renderProcesses();
  renderCurve();
  renderTree();
  const { comment } = game.nodes[game.here];
  $("comment").textContent = comment;
  $("comment").hidden = !comment;
  const { black, white, result, date } = game.info;
  const names = [black || white ? `${black || "Black"} – ${white || "White"}` : "", result, date].filter(Boolean);
  $("names").textContent = names.join(" · ");
  $("names").hidden = names.length === 0;
}

// ---- A reload keeps the game of the tab

function save() {
  try {
    sessionStorage.setItem(kStorage, JSON.stringify({ game, settings, analysing, engineFollows }));
  } catch { /* without storage the page works, but a reload begins a new game */ }
}

function restore() {
  try {
    const saved = JSON.parse(sessionStorage.getItem(kStorage));
    if (saved?.game?.nodes?.length) ({ game, settings, analysing, engineFollows } = saved);
  } catch { /* as above */ }
  $("engine-side").value = settings.engine;
  $("seconds").value = settings.seconds;
  $("heat").checked = settings.heat;
}

// ---- Events

$("board").addEventListener("click", (event) => {
  const cell = event.target.closest("[data-cell]");
  if (cell && job?.kind !== "engine") play(cell.dataset.cell);
});
$("board").addEventListener("pointerover", (event) => {
  if (event.pointerType === "touch") return;
  hovered = event.target.closest("[data-cell]")?.dataset.cell ?? null;
  renderLine();
});
$("board").addEventListener("pointerleave", () => { hovered = null; renderLine(); });
$("board").addEventListener("focusin", (event) => {
  const cell = event.target.closest("[data-cell]");
  if (!cell) return;
  setFocus(cell.dataset.cell, false);
  hovered = focused;
  renderLine();
});
$("board").addEventListener("focusout", () => { hovered = null; renderLine(); });
$("board").addEventListener("keydown", (event) => {
  const { col, row } = cells.get(focused);
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (event.key === "Enter" || event.key === " ") {
    if (job?.kind !== "engine") play(focused);
  } else if (step) {
    const name = cellName(col + step[0], row + step[1]);
    if (cells.has(name)) setFocus(name, true);
  } else if (event.key === "Home" || event.key === "End") {
    setFocus(cellName(event.key === "Home" ? 0 : game.cols - 1, row), true);
  } else return;
  event.preventDefault();
});

function toggleAnalysis() {
  analysing = !analysing;
  engineFollows = false;
  if (analysing) resume();
  else stopJob();
  save();
  renderControls();
  renderStatus();
}
function toggleEngine() {
  if (job?.kind === "engine") {
    engineFollows = false;
    stopJob();
    renderControls();
    renderStatus();
    save();
  } else if (position && !position.winner) {
    engineFollows = true;
    engineMove();
  }
}
function step(direction) {
  if (direction < 0 && game.here > 0) navigate(game.nodes[game.here].parent);
  if (direction > 0 && game.nodes[game.here].children.length) navigate(forward(game.here));
}

$("analyse").addEventListener("click", toggleAnalysis);
$("engine").addEventListener("click", toggleEngine);
$("undo").addEventListener("click", undo);
$("swap").addEventListener("click", () => play("swap-pieces"));
$("curve-run").addEventListener("click", () => {
  if (job?.kind === "curve") {
    stopJob();
    resume();
  } else analyseGame();
  renderControls();
  renderStatus();
});
$("first").addEventListener("click", () => navigate(0));
$("previous").addEventListener("click", () => step(-1));
$("next").addEventListener("click", () => step(1));
$("last").addEventListener("click", () => navigate(wholeLine().pop() ?? 0));
$("slider").addEventListener("input", () => navigate([0, ...wholeLine()][$("slider").value]));
$("tree").addEventListener("click", (event) => {
  const node = event.target.closest("[data-node]");
  if (node) navigate(Number(node.dataset.node));
});
$("tree-box").addEventListener("keydown", (event) => {
  const siblings = game.here > 0 ? game.nodes[game.nodes[game.here].parent].children : [0];
  const at = siblings.indexOf(game.here);
  if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "ArrowRight") step(1);
  else if (event.key === "ArrowUp" && at > 0) navigate(siblings[at - 1]);
  else if (event.key === "ArrowDown" && at + 1 < siblings.length) navigate(siblings[at + 1]);
  else return;
  event.preventDefault();
});
$("curve").addEventListener("click", (event) => {
  const line = [0, ...wholeLine()];
  const share = (event.offsetX - 34) / Math.max(1, $("curve").clientWidth - 40);
  navigate(line[Math.round(Math.min(1, Math.max(0, share)) * (line.length - 1))]);
});
for (const [id, key] of [["engine-side", "engine"], ["seconds", "seconds"]]) {
  $(id).addEventListener("change", () => {
    settings[key] = $(id).value;
    save();
    if (key !== "engine") return;
    engineFollows = true;
    if (job?.kind === "engine") stopJob();
    if (job?.kind !== "curve") resume();
  });
}
$("heat").addEventListener("change", () => { settings.heat = $("heat").checked; save(); renderView(); });

$("new").addEventListener("click", () => {
  $("size").value = Math.min(19, Math.max(game.cols, 3));
  $("size").dispatchEvent(new Event("input"));
  $("new-dialog").returnValue = "";
  $("new-dialog").showModal();
});
$("size").addEventListener("input", () => { $("size-text").textContent = `${$("size").value} × ${$("size").value}`; });
$("new-dialog").addEventListener("close", () => {
  if ($("new-dialog").returnValue !== "start") return;
  engineFollows = true;
  begin(newGame(Number($("size").value), $("swap-rule").checked));
});

$("open").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  $("file").value = "";
  if (!file) return;
  try {
    const read = await readGame(await file.text());
    const next = newGame(read.cols, read.swap);
    next.rows = read.rows;
    next.start = read.start;
    next.info = { black: read.black_name, white: read.white_name, result: read.result, date: read.date };
    next.nodes[0].comment = read.comment;
    const lines = []; // for each line, the node that it leaves and those of its moves
    for (const { line, after, moves } of [{ moves: read.moves }, ...read.variations]) {
      const nodes = [line === undefined ? 0 : lines[line][after]];
      for (const { color, move, comment } of moves) {
        const parent = nodes[nodes.length - 1];
        nodes.push(next.nodes.length);
        next.nodes[parent].children.push(next.nodes.length);
        next.nodes.push({ parent, color, move, comment, children: [], next: 0, rate: null });
      }
      lines.push(nodes);
    }
    engineFollows = false;
    await begin(next);
  } catch (error) {
    notice(error.message);
  }
});
$("save").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([sgfTree()], { type: "application/x-go-sgf" }));
  link.download = "game.sgf";
  link.click();
  URL.revokeObjectURL(link.href);
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("new-dialog").open) return;
  if (event.target.matches("input, select")) return;
  const action = { u: undo, s: () => play("swap-pieces"), e: toggleEngine, a: toggleAnalysis, ",": () => step(-1),
    ".": () => step(1) }[event.key];
  if (action) action();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    const curve = job?.kind === "curve";
    stopJob();
    if (curve) document.addEventListener("visibilitychange", () => analyseGame(true), { once: true });
  } else if (!job) resume();
});
narrow.addEventListener("change", () => { buildBoard(); if (position) render(); });
new ResizeObserver(renderCurve).observe($("curve"));

restore();
buildBoard();
show(game.here);
