/** The page: what the server offers decides which views there are. */

import { models } from "./api.js";
import { Play } from "./play.js";
import { Prompt } from "./prompt.js";
import { Race } from "./race.js";
import { Tabs } from "./tabs.js";

const KEY = "diagonal session";

/** The newest snapshot, in the storage of this tab; what does not fit in is not kept. */
const kept = {
  load: () => JSON.parse(sessionStorage.getItem(KEY)),
  clear: () => sessionStorage.removeItem(KEY),
  save(found) {
    try {
      sessionStorage.setItem(KEY, JSON.stringify(found));
    } catch {
      sessionStorage.removeItem(KEY);
    }
  },
};

function trouble(text) {
  const place = document.getElementById("trouble");
  place.textContent = text;
  place.hidden = false;
}

function about(offered) {
  return offered.map((model) => (model.random_weights ? `${model.id} (random weights)` : model.id)).join(", ");
}

async function begin() {
  const offered = await models();
  const worlds = offered.filter((model) => model.kind === "world");
  const videos = offered.filter((model) => model.kind === "video");
  document.getElementById("about").textContent = about(offered);
  for (const view of ["play", "race", "branch"]) document.getElementById(`tab-${view}`).hidden = !worlds.length;
  document.getElementById("tab-prompt").hidden = !videos.length;
  if (!offered.length) throw new Error("it offers no model");

  const views = {};
  const tabs = new Tabs(document.querySelector("[role=tablist]"), (shown) => {
    for (const [name, view] of Object.entries(views)) view.show(name === shown || (name === "play" && shown === "branch"));
  });
  tabs.show(location.hash.slice(1)); // what is seen first does not wait for the views
  if (worlds.length) {
    views.play = new Play(worlds, kept);
    views.race = new Race(views.play.settings);
  }
  if (videos.length) views.prompt = new Prompt(videos);
  tabs.show(location.hash.slice(1)); // again, for views that were not there yet
}

begin().catch((error) => trouble(`The server cannot be used: ${error.message}`));
