"use strict";
// Plays back recorded episodes (`record_episode` in report.py) on a canvas. Lengths arrive in millimetres and angles in
// milliradians, as differences from step to step.
(() => {
  const root = document.documentElement;
  window.addEventListener("error", (event) => { root.dataset.scriptError = String(event.message); });

  const colour = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();
  const byId = (id) => document.getElementById(id);

  function undoDifferences(flat, width) {
    const out = new Float64Array(flat.length);
    for (let i = 0; i < flat.length; i++) out[i] = flat[i] / 1000 + (i >= width ? out[i - width] : 0);
    return out;
  }

  function decode(record) {
    const steps = record.poses.length / 3 - 1;
    const poses = undoDifferences(record.poses, 3);
    const episodeCost = new Uint16Array(steps + 1), costly = new Uint8Array(steps + 1);
    for (const step of record.costs) costly[step] = 1;
    for (let i = 1; i <= steps; i++) episodeCost[i] = episodeCost[i - 1] + costly[i];
    let span = record.extents;
    for (let i = 0; i <= steps; i++)
      for (const k of [0, 1]) span = Math.max(span, Math.abs(poses[3 * i + k] - record.centre[k]));
    const gremlins = undoDifferences(record.gremlins, 3 * record.circles.length);
    return { ...record, steps, poses, gremlins, episodeCost, costly, span: span + 0.25, returns: undoDifferences(record.returns, 1) };
  }

  // The goal at a step: the last entry [step, x, y, button] that has begun.
  function goalAt(episode, step) {
    let found = episode.goals[0];
    for (const goal of episode.goals) if (goal[0] <= step) found = goal;
    return found;
  }

  function fitCanvas(canvas) {
    const ratio = window.devicePixelRatio || 1, box = canvas.getBoundingClientRect();
    const width = Math.max(1, Math.round(box.width * ratio)), height = Math.max(1, Math.round(box.height * ratio));
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    return canvas.getContext("2d");
  }

  function drawScene(canvas, episode, step) {
    const pen = fitCanvas(canvas), size = canvas.width, unit = size / (2 * episode.span);
    const [cx, cy] = episode.centre;
    const px = (x) => (x - cx + episode.span) * unit, py = (y) => (episode.span - y + cy) * unit;
    const disc = (x, y, r, fill, alpha, line, lineAlpha) => {
      pen.beginPath(); pen.arc(px(x), py(y), r * unit, 0, 2 * Math.PI);
      if (fill) { pen.globalAlpha = alpha; pen.fillStyle = fill; pen.fill(); }
      if (line) { pen.globalAlpha = lineAlpha ?? 1; pen.strokeStyle = line; pen.lineWidth = 0.016 * unit; pen.stroke(); }
      pen.globalAlpha = 1;
    };
    const square = (x, y, half, turn, fill) => {
      pen.save(); pen.translate(px(x), py(y)); pen.rotate(-turn); pen.fillStyle = fill;
      pen.beginPath(); pen.roundRect(-half * unit, -half * unit, 2 * half * unit, 2 * half * unit, 0.015 * unit); pen.fill(); pen.restore();
    };
    const { radii, extents } = episode, x = episode.poses[3 * step], y = episode.poses[3 * step + 1], turn = episode.poses[3 * step + 2];
    const [since, goalX, goalY, goalButton] = goalAt(episode, step), costly = episode.costly[step];

    pen.fillStyle = colour("track"); pen.fillRect(0, 0, size, size);
    pen.fillStyle = colour("arena"); pen.fillRect(px(cx - extents), py(cy + extents), 2 * extents * unit, 2 * extents * unit);
    pen.strokeStyle = colour("grid"); pen.lineWidth = Math.max(1, 0.006 * unit);
    for (let k = Math.ceil(-2 * extents); k <= 2 * extents; k++) {
      pen.beginPath(); pen.moveTo(px(cx + k / 2), py(cy - extents)); pen.lineTo(px(cx + k / 2), py(cy + extents));
      pen.moveTo(px(cx - extents), py(cy + k / 2)); pen.lineTo(px(cx + extents), py(cy + k / 2)); pen.stroke();
    }
    for (const [hx, hy] of episode.hazards) disc(hx, hy, radii.hazard, colour("hazard"), 0.24, colour("hazard"), 0.8);
    if (goalButton < 0) {
      disc(goalX, goalY, radii.goal, colour("goal"), 0.26, colour("goal"));
      disc(goalX, goalY, 0.5 * radii.goal, null, 1, colour("goal"), 0.6);
      disc(goalX, goalY, 0.035, colour("goal"), 1);
    }
    pen.strokeStyle = colour("alarm"); pen.lineWidth = 0.03 * unit; pen.globalAlpha = 0.6;
    for (const [x0, y0, x1, y1] of episode.walls) { pen.beginPath(); pen.moveTo(px(x0), py(y0)); pen.lineTo(px(x1), py(y1)); pen.stroke(); }
    pen.globalAlpha = 1;
    pen.setLineDash([0.04 * unit, 0.04 * unit]);
    for (const [gx, gy] of episode.circles) disc(gx, gy, radii.travel, null, 1, colour("gremlin"), 0.5);
    pen.setLineDash([]);

    const path = (end, alpha) => {  // where it has been, or, fainter, where it will go
      pen.beginPath(); pen.moveTo(px(episode.poses[0]), py(episode.poses[1]));
      for (let i = 1; i <= end; i++) pen.lineTo(px(episode.poses[3 * i]), py(episode.poses[3 * i + 1]));
      pen.globalAlpha = alpha; pen.strokeStyle = colour("trail"); pen.lineWidth = 0.014 * unit; pen.lineJoin = "round";
      pen.stroke(); pen.globalAlpha = 1;
    };
    path(episode.steps, 0.22);
    path(step, 0.6);
    const alarm = colour("alarm");
    for (const i of episode.costs) disc(episode.poses[3 * i], episode.poses[3 * i + 1], 0.018, alarm, i <= step ? 0.75 : 0.2);

    const waiting = since > 0 && step - since < episode.button_timer;
    episode.buttons.forEach(([bx, by], i) => {
      const own = colour(i === goalButton ? "goal" : "button");
      if (i === goalButton) disc(bx, by, 1.9 * radii.button, own, 0.18, own, 0.7);
      disc(bx, by, radii.button, own, waiting ? 0.45 : 1);
    });
    const count = episode.circles.length;
    for (let g = 0; g < count; g++) {
      const at = 3 * (step * count + g);
      square(episode.gremlins[at], episode.gremlins[at + 1], radii.gremlin, episode.gremlins[at + 2], colour("gremlin"));
    }

    if (costly) disc(x, y, 2 * radii.robot, colour("alarm"), 0.35);
    square(x + radii.nose * Math.cos(turn), y + radii.nose * Math.sin(turn), radii.nose_half, turn, colour("robot-dark"));
    disc(x, y, radii.robot, colour("robot"), 1, colour("robot-dark"));
    pen.save(); pen.translate(px(x), py(y)); pen.rotate(-turn); pen.scale(unit, unit); pen.fillStyle = "#fff"; pen.beginPath();
    pen.moveTo(0.062, 0); pen.lineTo(-0.034, 0.046); pen.lineTo(-0.012, 0); pen.lineTo(-0.034, -0.046); pen.fill(); pen.restore();
    if (costly) { pen.strokeStyle = colour("alarm"); pen.lineWidth = 0.02 * size; pen.strokeRect(0, 0, size, size); }
  }

  // Above the scrubber: where it cost (red, below the line) and where a goal was reached (green, above it).
  function drawMarks(canvas, episode) {
    const pen = fitCanvas(canvas), inset = 8 * (window.devicePixelRatio || 1), width = canvas.width - 2 * inset, half = canvas.height / 2;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    const tick = (step, name, top) => {
      pen.fillStyle = colour(name); pen.fillRect(inset + (step / episode.steps) * width - 1, top, Math.max(2, width / episode.steps), half - 1);
    };
    for (const goal of episode.goals) if (goal[0] > 0) tick(goal[0], "goal", 0);
    for (const step of episode.costs) tick(step, "alarm", half);
  }

  function start(records) {
    const scene = byId("scene"), marks = byId("marks"), play = byId("play"), scrub = byId("scrub"), speed = byId("speed"), choose = byId("choose");
    let episode = decode(records[0]), step = 0, playing = false, last = null, part = 0;

    function show() {
      drawScene(scene, episode, step);
      scrub.value = step;
      const seconds = (step * episode.step_duration).toFixed(1);
      scrub.setAttribute("aria-valuetext", `${seconds} seconds, episode cost ${episode.episodeCost[step]}`);
      byId("time").textContent = `${seconds} s`;
      byId("step").textContent = `${step} of ${episode.steps}`;
      byId("return").textContent = episode.returns[step].toFixed(2);
      const cost = byId("cost"), limit = episode.cost_limit;
      cost.textContent = limit === null ? `${episode.episodeCost[step]}` : `${episode.episodeCost[step]} (limit ${limit})`;
      cost.classList.toggle("over", limit !== null && episode.episodeCost[step] > limit);
      play.textContent = playing ? "Pause" : step === episode.steps ? "Replay" : "Play";
    }
    function tick(now) {
      if (!playing) return;
      // A frame's time may lie before the click that asked for it, and a hidden tab stands still: neither makes a jump.
      const elapsed = last === null ? 0 : Math.min(0.25, Math.max(0, (now - last) / 1000));  // s
      last = now;
      part += (elapsed / episode.step_duration) * Number(speed.value);
      const whole = Math.floor(part);
      part -= whole;
      step = Math.min(episode.steps, step + whole);
      if (step === episode.steps) playing = false;
      show();
      if (playing) requestAnimationFrame(tick);
    }
    function toggle() {
      if (!playing && step === episode.steps) step = 0;
      playing = !playing;
      last = null;
      part = 0;
      show();
      if (playing) requestAnimationFrame(tick);
    }
    function open(index) {
      episode = decode(records[index]);
      playing = false;
      scrub.max = episode.steps;
      for (const item of document.querySelectorAll("[data-shows]")) item.hidden = !episode[item.dataset.shows].length;
      step = 0;
      redraw();
    }
    function redraw() { drawMarks(marks, episode); show(); }

    play.addEventListener("click", toggle);
    scene.addEventListener("click", toggle);
    scrub.addEventListener("input", () => { playing = false; step = Number(scrub.value); show(); });
    if (choose) choose.addEventListener("change", () => open(Number(choose.value)));
    window.addEventListener("resize", redraw);
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    open(0);
  }

  const data = byId("episodes");
  if (data) start(JSON.parse(data.textContent));
  root.dataset.ready = "true";
})();
