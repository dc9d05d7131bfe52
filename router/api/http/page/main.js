// The page: one event stream updates every part in place.

import { get } from "./api.js";
import { startConfirm } from "./confirm.js";
import { showDetails } from "./details.js";
import { byId, setData, setText } from "./dom.js";
import { askForKey, startKeys } from "./keys.js";
import { rowLink, showOverview, startOverview } from "./overview.js";
import { showPlots, startPlots } from "./plots.js";
import { showRequests, startRequests } from "./requests.js";
import { fresh, series, shared } from "./state.js";
import { startStory } from "./story.js";
import { Stream } from "./stream.js";
import { showAudit, showKnobs, showShadows } from "./tables.js";
import { startTheme } from "./theme.js";
import { showHeadline, showTroubles, startTroubles } from "./troubles.js";
import { startViews } from "./views.js";

const HISTORY_STEPS = 4;
let waiting = false;

const stream = new Stream("overview/events", {
  opened: () => fresh.opened(),
  event: (name, content) => {
    if (name === "history") series.replace(content);
    if (name === "overview") receive(content);
  },
  lost: (message, retryAt) => {
    fresh.lost(message, retryAt);
    showAge();
  },
  refused: (error) => {
    fresh.lost(error.message, 0);
    showAge();
    clear();
    if (!error.isWrongOrigin) askForKey(error);
  },
});

function receive(overview) {
  shared.overview = overview;
  fresh.received(overview.at_unix_ms);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
  if (document.hidden) draw(); // a hidden page is not painted, but its title is visible
}

/** A failure of the page itself is reported, not hidden. */
function draw() {
  waiting = false;
  if (shared.overview === null) return;
  try {
    const { overview } = shared;
    fresh.recovered();
    setText(byId("ensemble"), overview.ensemble);
    setText(byId("version"), overview.version);
    for (const part of [showTroubles, showOverview, showDetails, showPlots, showKnobs, showShadows, showRequests, showAudit]) part(overview);
  } catch (error) {
    fresh.failed("This page could not show the data; see the browser console.");
    console.error(error);
  }
  showAge();
}

function showAge() {
  fresh.show();
  showHeadline();
}

/** Removes all data from the page after the access has been lost. */
function clear() {
  if (shared.overview !== null) location.reload();
}

async function updateHistory() {
  if (fresh.isLive) {
    try {
      series.merge(await get(`history?last_seconds=${HISTORY_STEPS * series.stepSeconds}`));
      showPlots();
    } catch {
      // the event stream reports the state of the router
    }
  }
  setTimeout(updateHistory, 1000 * Math.max(5, series.stepSeconds));
}

startTheme(byId("theme"));
startKeys(() => {
  clear();
  stream.start();
});
startConfirm();
startStory();
startTroubles();
startOverview();
startPlots();
startRequests();
startViews(draw, rowLink);
setData(byId("headline"), "severity", "unknown");
setInterval(showAge, 1000);
setTimeout(updateHistory, 5000);
stream.start();
