// @ts-check
/** The panel that asks which pictures of a prompt are the best. It covers the page; the same on the canvas and at `otca vote`. */
import { answerOf, clicked, columnsFor, markOf, MODES, moved, newBallot, roughly } from "../lib/ballot.js";
import { count } from "../lib/format.js";
import { t } from "../lib/language.js";
import { newest } from "../lib/newest.js";
import { poll } from "../lib/poll.js";
import { h, keyedChildren, once, setText } from "../sidebar/dom.js";

/** @typedef {import("../lib/ballot.js").Ballot} Ballot */
/** @typedef {import("../lib/ballot.js").Mode} Mode */

const EVERY_MS = 1000; // between two looks at what is asked, while something is
const SMALL = 128; // pixels; smaller pictures are magnified without blur

const TEXT = {
  title: t("Which pictures are better?"),
  source: t("The picture that was edited"),
  modes: { pick: t("Best and worst"), thumbs: t("Thumbs"), order: t("Order") },
  help: {
    pick: t("Click the best picture, right-click or Shift-click the worst. One of them is enough."),
    thumbs: t("Click for a thumb up, right-click or Shift-click for a thumb down. The rest is in between."),
    order: t("Click in turn, the best first, or drag. What you leave out comes after, all alike."),
  },
};

/**
 * Shows the panel whenever something is asked. `refresh` looks now.
 *
 * @param {VoteServer} server
 * @param {{stop?: () => void, always?: boolean}} options `stop` ends the training; `always`: the panel is the page
 */
export function votePanel(server, { stop, always = false } = {}) {
  /** @type {VoteQuestion[]} */
  let questions = [];
  /** @type {VoteQuestion | null} */
  let current = null;
  /** @type {number | null} */
  let secondsEach = null;
  let closed = false; // by the user, until something else is asked
  let saving = false;
  let aspect = 1;
  /** @type {Mode} */
  let mode = "pick";
  /** @type {Map<string, Ballot[]>} each question's ballots, the newest last */
  const ballots = new Map();
  /** @type {string[]} ids of what was answered here, the last one at the end */
  const done = [];
  const begun = newest();

  const learned = h("p.otca-note.otca-vote-learned");
  const prompt = h("h2.otca-vote-prompt");
  const source = h("img.otca-vote-source", { alt: TEXT.source, title: TEXT.source, draggable: "false" });
  const left = h("p.otca-note", { role: "status" });
  const pictures = h("div.otca-vote-pictures", { role: "group", "aria-label": TEXT.title });
  // Two, since the next read that succeeds clears only the second.
  const error = h("div.otca-error", { role: "alert" });
  const readError = h("div.otca-error", { role: "alert" });
  const help = h("p.otca-note");
  const keys = h("p.otca-note.otca-vote-keys", {}, t("1–9 click (Shift: right-click) · arrows and Enter · Space next · A all alike · S skip · U undo"));
  const modes = MODES.map((name) => h("button", { type: "button", onclick: () => setMode(name) }, TEXT.modes[name]));
  const [undo, alike, skip, next] = [
    action(t("Undo"), () => takeBack()),
    action(t("All alike"), () => send({ kind: "alike" })),
    action(t("Skip"), () => send({ kind: "skip" })),
    action(t("Next"), () => sendBallot()),
  ];
  next.classList.add("otca-primary");
  const dialog = h(
    "dialog.otca-dialog.otca-vote",
    { "aria-label": TEXT.title },
    h(
      "header.otca-vote-head",
      {},
      source,
      h("div.otca-vote-asked", {}, prompt, left, learned),
      stop && action(t("Stop training"), stop),
      !always && action(t("Later"), () => dialog.close()),
    ),
    pictures,
    error,
    readError,
    h(
      "footer.otca-vote-foot",
      {},
      h("div.otca-vote-help", {}, h("span.otca-switch", { role: "group" }, modes), help, keys),
      h("div.otca-buttons", {}, undo, alike, skip, next),
    ),
  );
  const chip = h("button.otca-button.otca-primary.otca-vote-chip", { type: "button", onclick: () => open() });
  const showTiles = keyedChildren(pictures, (number) => `${current?.id} ${number}`, tile);

  dialog.addEventListener("keydown", pressed);
  // A button is also clicked when Space is let go.
  dialog.addEventListener("keyup", (event) => event.key === " " && event.preventDefault());
  dialog.addEventListener("cancel", (event) => always && event.preventDefault());
  dialog.addEventListener("close", () => {
    closed = true;
    show();
  });
  const follow = poll(read, { every: EVERY_MS, isSeen: () => document.visibilityState !== "hidden", failed: (failure) => setText(readError, failure.message) });
  if (globalThis.ResizeObserver) new ResizeObserver(arrange).observe(pictures);
  document.body.append(dialog, chip);
  show();

  /**
   * @param {string} label
   * @param {() => void} onclick
   */
  function action(label, onclick) {
    return h("button.otca-button", { type: "button", onclick: once(onclick) }, label);
  }

  /** Reads what is asked; gives whether to look again soon. */
  async function read() {
    if (saving) return true;
    const isNewest = begun();
    /** @type {{questions: VoteQuestion[], seconds_each: number | null}} */
    const state = await server.getJson("/otca/votes");
    setText(readError, "");
    if (!isNewest()) return true; // it does not know what was answered meanwhile
    const known = new Set(questions.map(({ id }) => id));
    if (state.questions.some(({ id, answered }) => !answered && !known.has(id))) {
      closed = false;
      setText(error, ""); // of what was asked before
    }
    questions = state.questions;
    // What is asked again later, with the same pictures, is asked anew.
    for (const id of ballots.keys()) if (!questions.some((question) => question.id === id)) ballots.delete(id);
    secondsEach = state.seconds_each;
    choose();
    show();
    return always || questions.length > 0;
  }

  /** Keeps what is shown while it is still asked, and else goes on to the first that has no answer. */
  function choose() {
    const same = questions.find(({ id }) => id === current?.id);
    current = same && !same.answered ? same : (questions.find(({ answered }) => !answered) ?? null);
  }

  function open() {
    closed = false;
    show();
  }

  function ballot() {
    if (!current) return null;
    const made = ballots.get(current.id) ?? [newBallot(current.pictures.length, mode)];
    ballots.set(current.id, made);
    return made[made.length - 1];
  }

  /** @param {Ballot} changed */
  function change(changed) {
    if (!current || changed === ballot()) return;
    ballots.get(current.id)?.push(changed);
    show();
  }

  /** @param {Mode} chosen */
  function setMode(chosen) {
    mode = chosen;
    if (current) ballots.set(current.id, [newBallot(current.pictures.length, mode)]);
    show();
  }

  function show() {
    const shown = ballot();
    const waiting = questions.filter(({ answered }) => !answered).length;
    setText(chip, t("Vote: {groups} waiting", { groups: count(waiting, t("{count} group"), t("{count} groups")) }));
    chip.hidden = always || !closed || !waiting;
    setText(prompt, current?.prompt ?? t("Nothing to vote on. The next pictures appear here as soon as a training asks."));
    source.hidden = !current?.source;
    const made = current?.source ? server.routeUrl(`/otca/votes/${current.id}/pictures/source`) : "";
    if (source.getAttribute("src") !== made) source.setAttribute("src", made);
    setText(left, progress(waiting));
    setText(learned, current?.learned ?? "");
    for (const [number, button] of modes.entries()) button.setAttribute("aria-pressed", String(MODES[number] === (shown?.mode ?? mode)));
    setText(help, TEXT.help[shown?.mode ?? mode]);
    for (const button of [alike, skip]) button.disabled = !current || saving;
    next.disabled = !shown || !answerOf(shown) || saving;
    undo.disabled = saving || !(current && (ballots.get(current.id)?.length ?? 0) > 1) && !lastDone();
    showTiles(shown ? shown.order : []);
    arrange();
    const wanted = always || (current !== null && !closed);
    if (wanted && !dialog.open) {
      if (always) dialog.show();
      else dialog.showModal();
    }
    if (!wanted && dialog.open) {
      dialog.close();
      closed = false; // it is not the user who closed it
    }
    if (wanted && !pictures.contains(document.activeElement)) focusOn(0);
  }

  /** @param {number} waiting */
  function progress(waiting) {
    if (saving) return t("saving …");
    if (!current) return "";
    const number = questions.indexOf(current) + 1;
    const time = secondsEach === null ? "" : ` · ${roughly(secondsEach * waiting)}`;
    return t("Group {number} of {all} · {waiting} left", { number, all: questions.length, waiting }) + time;
  }

  /** One picture, which is a button. */
  function tile() {
    const name = h("span.otca-vote-number");
    const mark = h("span.otca-vote-mark");
    const element = h("button.otca-vote-picture", { type: "button" }, name, " ", mark);
    let number = -1;
    const click = (/** @type {MouseEvent} */ event, /** @type {boolean} */ second) => {
      event.preventDefault();
      const shown = ballot();
      if (shown) change(clicked(shown, number, second));
    };
    element.addEventListener("click", (event) => click(event, event.shiftKey));
    element.addEventListener("contextmenu", (event) => click(event, true));
    element.addEventListener("dragstart", (event) => event.dataTransfer?.setData("text/plain", String(number)));
    element.addEventListener("dragover", (event) => event.preventDefault());
    element.addEventListener("drop", (event) => {
      event.preventDefault();
      const shown = ballot();
      const dragged = Number(event.dataTransfer?.getData("text/plain"));
      if (shown?.mode === "order" && shown.order.includes(dragged)) change(moved(shown, dragged, shown.order.indexOf(number)));
    });
    const update = (/** @type {number} */ picture) => {
      const shown = ballot();
      if (!current || !shown) return;
      if (number < 0) element.prepend(media(current, picture));
      number = picture;
      const said = markOf(shown, number);
      element.draggable = shown.mode === "order";
      element.setAttribute("data-tone", said?.tone ?? "");
      element.setAttribute("aria-label", [t("Picture {number}", { number: number + 1 }), (said?.text ?? "")].filter(Boolean).join(", "));
      setText(name, String(number + 1));
      setText(mark, said?.text ?? "");
    };
    return { element, update };
  }

  /**
   * @param {VoteQuestion} question
   * @param {number} number
   */
  function media(question, number) {
    const src = server.routeUrl(`/otca/votes/${question.id}/pictures/${number}`);
    if (question.pictures[number].video) {
      const video = h("video", { src, autoplay: true, loop: true, muted: true, playsinline: true, draggable: "false" });
      video.muted = true; // the attribute alone does not count for an element that a script made
      video.addEventListener("loadedmetadata", () => measured(video, video.videoWidth, video.videoHeight));
      return video;
    }
    const picture = h("img", { src, alt: "", draggable: "false" });
    picture.addEventListener("load", () => measured(picture, picture.naturalWidth, picture.naturalHeight));
    return picture;
  }

  /**
   * @param {HTMLElement} element
   * @param {number} width
   * @param {number} height
   */
  function measured(element, width, height) {
    element.classList.add(...(width <= SMALL ? ["otca-vote-small"] : []));
    aspect = width / height;
    arrange();
  }

  function columns() {
    const { clientWidth: width, clientHeight: height } = pictures;
    return columnsFor(Math.max(1, pictures.children.length), width, height, aspect);
  }

  function arrange() {
    const wide = columns();
    pictures.style.gridTemplateColumns = `repeat(${wide}, minmax(0, 1fr))`;
    pictures.style.gridTemplateRows = `repeat(${Math.ceil(pictures.children.length / wide) || 1}, minmax(0, 1fr))`;
  }

  /** @param {number} place */
  function focusOn(place) {
    const tiles = /** @type {HTMLElement[]} */ ([...pictures.children]);
    tiles[Math.max(0, Math.min(tiles.length - 1, place))]?.focus({ preventScroll: true });
  }

  /** @param {KeyboardEvent} event */
  function pressed(event) {
    event.stopPropagation(); // keys typed here are no shortcuts of the graph
    const shown = ballot();
    const digit = event.code.match(/^(?:Digit|Numpad)([1-9])$/)?.[1];
    const tiles = [...pictures.children];
    const place = tiles.indexOf(/** @type {Element} */ (document.activeElement));
    /** @type {Record<string, () => void>} */
    const known = {
      " ": sendBallot,
      a: () => send({ kind: "alike" }),
      s: () => send({ kind: "skip" }),
      u: takeBack,
      Backspace: takeBack,
      ArrowLeft: () => focusOn(place - 1),
      ArrowRight: () => focusOn(place + 1),
      ArrowUp: () => focusOn(place - columns() < 0 ? place : place - columns()),
      ArrowDown: () => focusOn(place + columns() >= tiles.length ? place : place + columns()),
    };
    if ((event.ctrlKey || event.metaKey) && event.key === "z") known.z = takeBack;
    else if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = known[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (digit && shown && Number(digit) <= shown.order.length) {
      event.preventDefault();
      change(clicked(shown, Number(digit) - 1, event.shiftKey));
    } else if (act && !event.repeat) {
      event.preventDefault();
      act();
    }
  }

  function sendBallot() {
    const shown = ballot();
    const answer = shown && answerOf(shown);
    if (answer) send(answer);
  }

  /** @param {object} answer */
  async function send(answer) {
    const question = current;
    if (!question || saving) return;
    await post(question, answer, () => {
      done.push(question.id);
      choose();
    });
  }

  /** The question that an undo goes back to: the last one answered whose answer can still be changed. */
  function lastDone() {
    const answered = questions.filter((question) => question.answered);
    const here = done.findLast((id) => answered.some((question) => question.id === id));
    return answered.find(({ id }) => id === here) ?? answered.at(-1);
  }

  async function takeBack() {
    const made = current && ballots.get(current.id);
    if (saving) return;
    if (made && made.length > 1) {
      made.pop();
      return show();
    }
    const question = lastDone();
    if (question) await post(question, null, () => (current = question));
  }

  /**
   * @param {VoteQuestion} question
   * @param {object | null} answer
   * @param {() => void} saved
   */
  async function post(question, answer, saved) {
    saving = true;
    begun();
    show();
    try {
      await server.postJson(`/otca/votes/${question.id}`, { answer });
      question.answered = answer !== null;
      setText(error, "");
      saved();
    } catch (failure) {
      setText(error, failure.message);
    } finally {
      saving = false;
      show();
      follow.refresh();
    }
  }

  return { refresh: follow.refresh };
}
