// Pages of suspected labels, and a person's answers on them, saved as a file.
"use strict";
const PER_PAGE = 50;
const list = document.getElementById("suspects");
const suspects = [...list.querySelectorAll(".suspect")];
const lastPage = Math.ceil(suspects.length / PER_PAGE) - 1;
const answers = document.getElementById("answers").content.firstElementChild;
const byId = (id) => document.getElementById(id);
const marks = new Map();
let shown = 0;
let unsaved = false;

function addAnswers(suspect) {
  const group = suspect.appendChild(answers.cloneNode(true));
  group.setAttribute("aria-label", `label of row ${suspect.dataset.row}`);
  const select = group.querySelector("select");
  for (const button of group.querySelectorAll("button")) {
    const answer = button.value;
    button.addEventListener("click", () => {
      const again = button.getAttribute("aria-pressed") === "true";
      mark(suspect, again ? null : { answer });
    });
  }
  select.addEventListener("change", () => {
    const label = Number(select.value);
    mark(suspect, select.value ? { answer: "other", label } : null);
  });
}

function mark(suspect, answer) {
  const row = Number(suspect.dataset.row);
  if (answer) marks.set(row, answer);
  else marks.delete(row);
  unsaved = marks.size > 0;
  suspect.classList.toggle("marked", answer !== null);
  for (const button of suspect.querySelectorAll("button")) {
    button.setAttribute("aria-pressed", String(answer?.answer === button.value));
  }
  const select = suspect.querySelector("select");
  select.value = answer?.label ?? "";
  select.classList.toggle("chosen", answer?.answer === "other");
  showCount();
}

function showCount() {
  byId("marked").textContent = `${marks.size} of ${suspects.length} marked`;
  byId("save").disabled = marks.size === 0;
}

function show(page) {
  shown = Math.min(Math.max(page, 0), lastPage);
  const [first, end] = [shown * PER_PAGE, (shown + 1) * PER_PAGE];
  suspects.forEach((suspect, place) => {
    suspect.hidden = place < first || place >= end;
    if (!suspect.hidden && !suspect.querySelector(".answers")) addAnswers(suspect);
  });
  byId("place").textContent = `${first + 1} to ${Math.min(end, suspects.length)} of ${suspects.length}`;
  byId("previous").disabled = shown === 0;
  byId("next-page").disabled = shown === lastPage;
}

function turn(pages) {
  show(shown + pages);
  byId("labels").scrollIntoView();
}

function save() {
  const rows = [...marks].sort(([one], [other]) => one - other);
  const content = {
    version: 1,
    fingerprint: list.dataset.fingerprint,
    marks: rows.map(([row, answer]) => ({ row, ...answer })),
  };
  const link = document.createElement("a");
  const text = JSON.stringify(content, null, 1) + "\n";
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "marks.json";
  link.click();
  URL.revokeObjectURL(link.href);
  unsaved = false;
}

byId("previous").addEventListener("click", () => turn(-1));
byId("next-page").addEventListener("click", () => turn(1));
byId("save").addEventListener("click", save);
window.addEventListener("beforeunload", (event) => {
  if (unsaved) event.preventDefault();
});
// Without scripts all suspects are shown, and none of these.
byId("how").hidden = byId("pager").hidden = false;
showCount();
show(0);
