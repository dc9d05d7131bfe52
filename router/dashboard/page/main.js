// The page: one stream in, every part updated where it stands.

import { get } from "./api.js";
import { showAudit } from "./audit.js";
import { startConfirm } from "./confirm.js";
import { fresh, series, shared } from "./context.js";
import { byId, setData, setText } from "./dom.js";
import { askForKey, startKeys } from "./keys.js";
import { showKnobs } from "./knobs.js";
import { showPlots, startPlots } from "./plots.js";
import { showRequests, startRequests } from "./requests.js";
import { showShadows } from "./shadows.js";
import { startStory } from "./story.js";
import { Stream } from "./stream.js";
import { startTheme } from "./theme.js";
import { showTiles, startTiles } from "./tiles.js";
import { showHeadline, showTroubles } from "./troubles.js";

const LATER_STEPS = 4;
let waiting = false;

const stream = new Stream("overview/events", {
  opened: () => fresh.opened(),
  event: (name, content) => {
    if (name === "history") series.replace(content);
    if (name === "overview") heard(content);
  },
  lost: (words, retryAt) => {
    fresh.lost(words, retryAt);
    showAge();
  },
  refused: (refused) => {
    fresh.lost(refused.message, 0);
    showAge();
    forget();
    if (!refused.isOfPlace) askForKey(refused);
  },
});

function heard(overview) {
  shared.overview = overview;
  fresh.heard(overview.at_unix_ms);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
  if (document.hidden) draw(); // nobody paints a hidden page, but its title is seen
}

/** A mistake of the page is told, never shown as if nothing were wrong. */
function draw() {
  waiting = false;
  if (shared.overview === null) return;
  try {
    const { overview } = shared;
    fresh.whole();
    setText(byId("ensemble"), overview.ensemble);
    setText(byId("version"), overview.version);
    for (const part of [showTroubles, showTiles, showPlots, showKnobs, showShadows, showRequests, showAudit]) part(overview);
  } catch (error) {
    fresh.broke("This page failed to show what came; its console says more.");
    console.error(error);
  }
  showAge();
}

function showAge() {
  fresh.show();
  showHeadline();
}

/** Whoever may not see it any more does not see it any more. */
function forget() {
  if (shared.overview !== null) location.reload();
}

async function follow() {
  if (fresh.isLive) {
    try {
      series.merge(await get(`history?last_seconds=${LATER_STEPS * series.stepSeconds}`));
      showPlots();
    } catch {
      // the stream tells how the router is
    }
  }
  setTimeout(follow, 1000 * Math.max(5, series.stepSeconds));
}

startTheme(byId("theme"));
startKeys(() => {
  forget();
  stream.start();
});
startConfirm();
startStory();
startTiles();
startPlots();
startRequests();
setData(byId("headline"), "severity", "unknown");
setInterval(showAge, 1000);
setTimeout(follow, 5000);
stream.start();
