// Search and filters. Every page can be read without this; it only finds things sooner.
(function () {
  "use strict";
  const up = document.body.dataset.up || "";
  const box = document.getElementById("q");
  const list = document.getElementById("found");
  let loading = null;

  function load() {
    if (window.orreryIndex) return Promise.resolve(window.orreryIndex);
    if (!loading) {
      loading = new Promise(function (done) {
        const script = document.createElement("script");
        script.src = up + "search-index.js";
        script.onload = function () { done(window.orreryIndex || []); };
        script.onerror = function () { done([]); };
        document.head.append(script);
      });
    }
    return loading;
  }

  // A word counts most in a title; every word must be somewhere.
  function score(entry, words) {
    const title = entry[1].toLowerCase(), of = entry[2].toLowerCase(), text = entry[3].toLowerCase();
    let total = 0;
    for (const word of words) {
      let here = 0;
      if (title === word || of === "system " + word) here = 60;
      else if (title.startsWith(word)) here = 30;
      else if (title.includes(word)) here = 18;
      else if (of.includes(word)) here = 8;
      else if (text.includes(word)) here = 3;
      if (!here) return 0;
      total += here;
    }
    return total;
  }

  function item(entry) {
    const row = document.createElement("li"), link = document.createElement("a");
    const name = document.createElement("b"), about = document.createElement("span");
    link.href = up + entry[0];
    name.textContent = entry[1];
    about.textContent = entry[2] || entry[3].slice(0, 70);
    link.append(name, " ", about);
    row.append(link);
    return row;
  }

  function search() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) { list.hidden = true; return; }
    load().then(function (entries) {
      const found = [];
      for (const entry of entries) {
        const points = score(entry, words);
        if (points) found.push([points, entry]);
      }
      found.sort(function (a, b) { return b[0] - a[0] || a[1][1].length - b[1][1].length; });
      list.replaceChildren.apply(list, found.slice(0, 12).map(function (f) { return item(f[1]); }));
      if (!found.length) {
        const none = document.createElement("li");
        none.className = "none";
        none.textContent = "Nothing found.";
        list.append(none);
      }
      list.hidden = false;
    });
  }

  if (box && list) {
    box.disabled = false;
    box.addEventListener("focus", load);
    box.addEventListener("input", search);
    box.addEventListener("keydown", function (event) {
      const first = list.querySelector("a");
      if (event.key === "Escape") { box.value = ""; list.hidden = true; }
      if (event.key === "Enter" && first) location.href = first.href;
      if (event.key === "ArrowDown" && first) { event.preventDefault(); first.focus(); }
    });
    list.addEventListener("keydown", function (event) {
      const links = Array.from(list.querySelectorAll("a")), at = links.indexOf(document.activeElement);
      if (event.key === "ArrowDown" && links[at + 1]) { event.preventDefault(); links[at + 1].focus(); }
      if (event.key === "ArrowUp") { event.preventDefault(); (links[at - 1] || box).focus(); }
      if (event.key === "Escape") { list.hidden = true; box.focus(); }
    });
    document.addEventListener("click", function (event) {
      if (!event.target.closest(".search")) list.hidden = true;
    });
    document.addEventListener("keydown", function (event) {
      const typing = /INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName);
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        box.focus();
      }
    });
  }

  const form = document.querySelector("[data-filters]");
  if (form) {
    const rows = Array.from(document.querySelectorAll("tbody tr")).filter(function (row) {
      return Object.keys(row.dataset).length;
    });
    const show = function () {
      let shown = 0;
      for (const row of rows) {
        let fits = true;
        for (const field of form.elements) {
          if (!field.name || !field.value) continue;
          const wanted = field.value.toLowerCase();
          if (field.name === "text") fits = fits && row.textContent.toLowerCase().includes(wanted);
          else fits = fits && row.dataset[field.name] === field.value;
        }
        row.hidden = !fits;
        if (fits) shown += 1;
      }
      form.querySelector("output").textContent = shown + " of " + rows.length;
    };
    form.hidden = false;
    form.addEventListener("input", show);
    form.addEventListener("submit", function (event) { event.preventDefault(); });
    show();
  }
})();
