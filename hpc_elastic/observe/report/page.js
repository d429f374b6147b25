"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 48; // rows of the timeline at a time
  const FEW = 24; // nodes that have a row each, though some did the same: a fault is then seen to be on one of them
  // Told apart by people who see no red or green as well (Okabe and Ito).
  const STATES = {
    waiting: "#e3c75a", starting: "#8fc7e8", running: "#2f9e77", failed: "#d1495b",
    stopping: "#e0a03c", spare: "#b9a3d0", lost: "#6b4a4a",
  };
  const USES = {
    starting: "#8fc7e8", "waiting for nodes": "#e3c75a", training: "#2f9e77", "training again": "#b07cc6",
    "stopping and restarting": "#e0a03c", stalled: "#d1495b", ended: "#8a949e",
  };
  const LINES = ["#2878b5", "#d1495b", "#2f9e77", "#e0a03c", "#b07cc6", "#4fb3bf", "#8a6d3b", "#8a949e"];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let isPrinting = false;

  // Plotly reads some tags in texts; what workers wrote has none.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const time = (ms) => new Date(ms).toISOString().replace("Z", "");
  const span = (ms) => {
    const s = ms / 1000;
    if (s < 60) return `${s.toFixed(1)} s`;
    return s < 3600 ? `${(s / 60).toFixed(1)} min` : `${(s / 3600).toFixed(2)} h`;
  };

  const during = (attempt) => attempt ? `attempt ${attempt}` : "before the first attempt";

  function layout(extra) {
    const isDark = dark.matches && !isPrinting;
    const text = isDark ? "#e3e8ee" : "#1b1f24", line = isDark ? "#343c46" : "#d5dae0";
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: text, size: 12 },
      margin: { l: 10, r: 10, t: 10, b: 30 }, hoverlabel: { align: "left" }, ...extra,
      width: isPrinting ? (extra.small ? 330 : 680) : undefined,
      xaxis: { type: "date", range: [time(data.begin), time(data.end)], ...axis, ...extra.xaxis },
      yaxis: { ...axis, ...extra.yaxis },
    };
  }
  const draw = (id, traces, extra) =>
    Plotly.react(id, traces, layout(extra), { responsive: true, displaylogo: false, displayModeBar: false });

  function bars(segments, colors, rowOf, hover) {
    return Object.keys(colors).map((kind) => {
      const own = segments.filter((each) => each[2] === kind);
      return {
        type: "bar", orientation: "h", name: kind, marker: { color: colors[kind], line: { width: 0 } },
        base: own.map((each) => time(each[0])), x: own.map((each) => each[1] - each[0]), y: own.map(rowOf),
        hovertext: own.map(hover), hovertemplate: "%{hovertext}<extra></extra>", showlegend: own.length > 0,
      };
    }).filter((trace) => trace.x.length);
  }

  function drawUses() {
    const hover = (each) => `${each[2]}<br>${during(each[3])}<br>${span(each[1] - each[0])}`;
    draw("uses", bars(data.uses, USES, () => "", hover), {
      barmode: "overlay", height: 110, bargap: 0.1, showlegend: false, yaxis: { visible: false },
    });
  }

  // The timeline: a row for each group of nodes that did the same, for each node, or for each rank.
  const rows = {
    alike: () => data.rows.map((row) => ({ label: label(row.nodes), nodes: row.nodes, segments: row.segments })),
    node: () => data.rows.flatMap((row) => row.nodes.map((node) => ({ label: node, nodes: [node], segments: row.segments })))
      .sort(byName),
    rank: () => rows.node().flatMap((row) => {
      const [first, count] = data.ranks[row.label] || [0, 0];
      return Array.from({ length: count }, (_, local) => ({
        label: `${first + local} ${row.label}`, nodes: row.nodes, rank: first + local, segments: row.segments,
      }));
    }).sort((one, other) => one.rank - other.rank),
  };
  const byName = (one, other) => one.label.localeCompare(other.label, "en", { numeric: true });
  const label = (nodes) => nodes.length === 1 ? nodes[0] : `${nodes.length} nodes: ${nodes[0]} ...`;
  let page = 0;

  function drawTimeline() {
    const view = document.getElementById("view").value;
    const all = rows[view]();
    const first = Math.min(page * PAGE, Math.max(0, Math.floor((all.length - 1) / PAGE) * PAGE));
    const some = all.slice(first, first + PAGE);
    const segments = some.flatMap((row, number) => row.segments.map((each) => [...each, number]));
    const hover = (each) => {
      const names = some[each[4]].nodes.slice(0, 12).map(plain).join(", ");
      const more = some[each[4]].nodes.length > 12 ? ` and ${some[each[4]].nodes.length - 12} more` : "";
      return `${each[2]}${each[3] ? `, attempt ${each[3]}` : ""}<br>${span(each[1] - each[0])}<br>${names}${more}`;
    };
    const traces = bars(segments, STATES, (each) => each[4], hover);
    const rowOf = new Map(some.flatMap((row, number) =>
      row.rank === undefined ? row.nodes.map((node) => [node, number]) : [[`${row.rank}`, number]]));
    const faults = data.faults.map((each) => [each, rowOf.get(view === "rank" ? `${each.rank}` : each.node)])
      .filter(([, row]) => row !== undefined);
    if (faults.length) {
      traces.push({
        type: "scatter", mode: "markers", name: "a rank failed", x: faults.map(([each]) => time(each.at)),
        y: faults.map(([, row]) => row), hovertemplate: "%{hovertext}<extra></extra>",
        hovertext: faults.map(([each]) => `rank ${each.rank} on ${plain(each.node)}<br>${plain(each.text)}`),
        marker: { symbol: "x", size: 10, color: "#d1495b", line: { color: "#ffffff", width: 1.5 } },
      });
    }
    draw("timeline", traces, {
      barmode: "overlay", height: Math.max(170, 90 + some.length * 17), bargap: 0.2,
      legend: { orientation: "h", y: 1, yanchor: "bottom", x: 0 }, margin: { l: 10, r: 10, t: 40, b: 30 },
      yaxis: {
        tickvals: some.map((_, number) => number), ticktext: some.map((row) => plain(row.label)),
        range: [some.length - 0.5, -0.5], fixedrange: some.length < 5, showgrid: false, zeroline: false,
      },
    });
    document.getElementById("shown").textContent =
      all.length > PAGE ? `${first + 1} to ${first + some.length} of ${all.length}` : "";
    for (const [id, is] of [["before", first > 0], ["after", first + PAGE < all.length]]) {
      const button = document.getElementById(id);
      button.hidden = all.length <= PAGE;
      button.disabled = !is;
    }
  }

  function drawRestarts() {
    if (!document.getElementById("restarts")) return;
    const at = [[data.begin, 0], ...data.restarts, [data.end, data.restarts.length - 1]];
    draw("restarts", [{
      type: "scatter", mode: "lines", line: { shape: "hv", color: LINES[0], width: 2 },
      x: at.map((each) => time(each[0])), y: at.map((each) => each[1]), hovertemplate: "%{y} restarts<extra></extra>",
    }], { height: 150, yaxis: { title: { text: "restarts" }, rangemode: "tozero", dtick: Math.ceil(Math.max(1, data.restarts.length - 1) / 4) } });
  }

  function drawMetrics() {
    const folder = document.getElementById("metrics");
    if (!folder) return;
    data.metrics.forEach((chart, number) => {
      let place = folder.children[number];
      if (!place) { place = document.createElement("div"); folder.append(place); }
      const traces = chart.lines.map((line, index) => ({
        type: "scatter", mode: line.x.length < 3 ? "lines+markers" : "lines", name: plain(line.name), x: line.x.map(time), y: line.y,
        line: { color: LINES[index % LINES.length], width: line.name === "median" ? 2.4 : 1.3 },
      }));
      draw(place, traces, {
        height: 230, small: true, title: { text: chart.title + (chart.unit ? ` (${chart.unit})` : ""), font: { size: 13 }, x: 0.02, y: 0.97 },
        showlegend: number === 0 && chart.lines.length > 1, legend: { orientation: "h", y: -0.3, font: { size: 10 } },
        margin: { l: 10, r: 10, t: 34, b: 30 }, yaxis: { rangemode: "tozero" }, xaxis: { nticks: 4, tickangle: 0 },
      });
    });
  }

  function drawAll() { drawUses(); drawTimeline(); drawRestarts(); drawMetrics(); }
  for (const place of document.querySelectorAll(".use")) place.style.background = USES[place.dataset.use];
  const view = document.getElementById("view");
  const nodes = data.rows.reduce((sum, row) => sum + row.nodes.length, 0);
  view.value = nodes <= FEW || nodes === data.rows.length ? "node" : "alike";
  view.addEventListener("change", () => { page = 0; drawTimeline(); });
  document.getElementById("before").addEventListener("click", () => { page -= 1; drawTimeline(); });
  document.getElementById("after").addEventListener("click", () => { page += 1; drawTimeline(); });
  dark.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => { isPrinting = true; drawAll(); });
  window.addEventListener("afterprint", () => { isPrinting = false; drawAll(); });
  drawAll();
  document.documentElement.dataset.drawn = "yes";
})();
