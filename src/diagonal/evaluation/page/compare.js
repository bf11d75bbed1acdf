// One question at a time about one pair at a time. STUDY comes from trials.js: { study, questions: [{ name, text }],
// trials: [{ left, right, asked }] }, where `asked` is what the videos were to show, or "". A vote is { trial, question, choice, seconds, played }; their number says where we are.
"use strict";

const $ = (id) => document.getElementById(id);
const PLACE = `diagonal-compare-${STUDY.study}`;
const CHOICES = { ArrowLeft: "left", ArrowRight: "right", ArrowDown: "tie", Digit1: "left", Digit2: "right", Digit0: "tie" };
const PAUSE = 500; // ms between two rounds of the videos
const SHOWN = 140; // ms that an answer is shown for
const videos = [$("left"), $("right")];
const still = matchMedia("(prefers-reduced-motion: reduce)").matches;

let state = load();
let began = 0; // when the question was shown
let played = false; // whether both videos of the pair have been seen to their end
let busy = false; // an answer is being shown
let round = 0; // of playing: what belongs to an older one is forgotten
let shown = -1; // the trial whose videos are there
let ahead = []; // the videos of the next trial, being loaded

function load() {
  try {
    const found = JSON.parse(localStorage.getItem(PLACE));
    if (found && typeof found.voter === "string" && Array.isArray(found.votes)) return found;
  } catch { /* private windows may keep nothing: then it lasts as long as the page */ }
  return { voter: "", votes: [] };
}

function keep() {
  try {
    localStorage.setItem(PLACE, JSON.stringify(state));
  } catch {
    trouble("This browser keeps nothing between visits: save your answers before you close the page.");
  }
}

function trouble(text) {
  $("trouble").textContent = text;
  $("trouble").hidden = false;
}

// Where we are

const total = STUDY.trials.length * STUDY.questions.length;
const trialOf = (step) => Math.floor(step / STUDY.questions.length);
const questionOf = (step) => STUDY.questions[step % STUDY.questions.length];

function show() {
  const step = state.votes.length;
  const view = !state.voter ? "start" : step < total ? "vote" : "end";
  document.body.dataset.view = view;
  $("trouble").hidden = true;
  if (view !== "vote") return rest(view);
  const trial = trialOf(step), asked = STUDY.questions.length;
  const which = asked > 1 ? `, question ${(step % asked) + 1} of ${asked}` : "";
  $("place").textContent = `Pair ${trial + 1} of ${STUDY.trials.length}${which}`;
  $("progress").max = total;
  $("progress").value = step;
  $("question").textContent = questionOf(step).text;
  $("undo").disabled = step === 0;
  began = performance.now();
  if (trial !== shown) present(trial);
}

function rest(view) {
  stop();
  shown = -1;
  videos.forEach((video) => video.removeAttribute("src"));
  if (view === "end") {
    $("given").textContent = total;
    document.querySelector("#end .save").focus();
  }
}

// The videos: both start together, and again when both have ended

function present(trial) {
  shown = trial;
  played = false;
  $("asked").textContent = `Asked for: ${STUDY.trials[trial].asked}`;
  $("asked").hidden = !STUDY.trials[trial].asked;
  videos.forEach((video) => { video.src = STUDY.trials[trial][video.id]; });
  const next = STUDY.trials[trial + 1];
  ahead = next ? [next.left, next.right].map((source) => Object.assign(document.createElement("video"), { preload: "auto", src: source })) : [];
  if (still) pause(true);
  else restart();
}

function stop() {
  round += 1;
  videos.forEach((video) => video.pause());
}

async function restart() {
  stop();
  const own = round;
  pause(false);
  videos.forEach((video) => { video.currentTime = 0; });
  await Promise.all(videos.map(ready));
  if (own === round && !$("pause").dataset.paused) start();
}

function ready(video) {
  return video.readyState >= 3 ? null : new Promise((done) => video.addEventListener("canplay", done, { once: true }));
}

function start() {
  videos.forEach((video) => video.play().catch(() => {}));
}

function ended() {
  if (!videos.every((video) => video.ended)) return;
  played = true;
  const own = round;
  setTimeout(() => { if (own === round) restart(); }, PAUSE);
}

function pause(paused) {
  $("pause").querySelector("span").textContent = paused ? "Play" : "Pause";
  if (paused) {
    $("pause").dataset.paused = "yes";
    videos.forEach((video) => video.pause());
  } else {
    delete $("pause").dataset.paused;
  }
}

function toggle() {
  const paused = !$("pause").dataset.paused;
  pause(paused);
  if (paused) return;
  if (videos.every((video) => video.ended)) restart();
  else videos.filter((video) => !video.ended).forEach((video) => video.play().catch(() => {}));
}

// Answers

function answer(choice) {
  if (busy || document.body.dataset.view !== "vote") return;
  busy = true;
  const step = state.votes.length;
  const seconds = Math.round((performance.now() - began) / 10) / 100;
  state.votes.push({ trial: trialOf(step), question: questionOf(step).name, choice, seconds, played });
  keep();
  const marked = [...document.querySelectorAll(`[data-choice="${choice}"], [data-side="${choice}"]`)];
  marked.forEach((one) => one.classList.add("chosen"));
  setTimeout(() => {
    marked.forEach((one) => one.classList.remove("chosen"));
    busy = false;
    show();
  }, SHOWN);
}

function undo() {
  if (busy || !state.votes.length) return;
  state.votes.pop();
  keep();
  show();
}

function save() {
  const content = JSON.stringify({ study: STUDY.study, voter: state.voter, votes: state.votes }, null, 1);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content + "\n"], { type: "application/json" }));
  link.download = `votes-${state.voter.replace(/[^\p{L}\p{N}_-]+/gu, "-")}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  $("saved").textContent = `Saved as ${link.download}.`;
}

function begin(event) {
  event.preventDefault();
  const voter = $("voter").value.trim();
  if (!voter) return;
  state.voter = voter;
  keep();
  show();
}

function over() {
  if (!confirm("Answers that are not saved as a file are lost. Start over?")) return;
  state = { voter: "", votes: [] };
  keep();
  $("voter").value = $("saved").textContent = "";
  show();
}

// Keys and buttons

const ACTIONS = { Backspace: undo, KeyU: undo, Space: toggle, KeyR: restart };

function pressed(event) {
  const view = document.body.dataset.view;
  if (view === "start" || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = CHOICES[event.code] ? () => answer(CHOICES[event.code]) : ACTIONS[event.code];
  if (!act || (view === "end" && act !== undo)) return;
  event.preventDefault();
  if (!event.repeat) act();
}

function released(event) { // else the space bar would also press the button that was clicked last
  if (event.code === "Space" && document.body.dataset.view === "vote") event.preventDefault();
}

addEventListener("keydown", pressed);
addEventListener("keyup", released);
$("begin").addEventListener("submit", begin);
$("undo").addEventListener("click", undo);
$("back").addEventListener("click", undo);
$("pause").addEventListener("click", toggle);
$("replay").addEventListener("click", restart);
$("restart").addEventListener("click", over);
document.querySelectorAll(".save").forEach((button) => button.addEventListener("click", save));
document.querySelectorAll("[data-choice]").forEach((button) => button.addEventListener("click", () => answer(button.dataset.choice)));
videos.forEach((video) => {
  video.addEventListener("ended", ended);
  video.addEventListener("error", () => {
    if (video.getAttribute("src")) trouble(`${video.getAttribute("src")} cannot be played: is the folder whole, and does this browser play H.264?`);
  });
});

const pairs = STUDY.trials.length;
$("count").textContent = pairs === 1 ? "one pair" : `${pairs} pairs`;
$("questions").replaceChildren(...STUDY.questions.map(({ text }) => Object.assign(document.createElement("li"), { textContent: text })));
if (!state.voter) $("voter").focus();
show();
