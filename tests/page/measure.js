// What the tests measure in the page. Runs before the page's own scripts, in every document.
"use strict";
(() => {
  const shifts = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) {
      if (entry.hadRecentInput) continue;
      shifts.push({
        value: entry.value,
        nodes: entry.sources.map((source) => name(source.node)),
      });
    }
  }).observe({ type: "layout-shift", buffered: true });

  function name(node) {
    if (!node) return "(removed)";
    if (node.nodeType === Node.TEXT_NODE) return `text of ${name(node.parentElement)}`;
    const id = node.id ? `#${node.id}` : "";
    const classes = node.classList.length ? `.${[...node.classList].join(".")}` : "";
    const label = node.getAttribute("aria-label");
    const text = (label || node.textContent || "").trim().replace(/\s+/g, " ").slice(0, 40);
    return `${node.tagName.toLowerCase()}${id}${classes} "${text}"`;
  }

  function visible(node) {
    if (!node.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return false;
    const box = node.getBoundingClientRect();
    return box.width > 1 && box.height > 1; // 1x1 is text for screen readers
  }

  function scrolls(style, axis) {
    return ["auto", "scroll"].includes(style[`overflow${axis}`]);
  }

  // Elements with text of their own whose text does not fit, and elements beside the viewport.
  function cutOff() {
    const found = [];
    const width = document.documentElement.clientWidth;
    if (document.scrollingElement.scrollWidth > width) {
      found.push(`the page is ${document.scrollingElement.scrollWidth} wide, not ${width}`);
    }
    for (const node of document.body.querySelectorAll("*")) {
      const own = [...node.childNodes].some(
        (child) => child.nodeType === Node.TEXT_NODE && child.data.trim(),
      );
      if (!own || !visible(node) || node.closest("svg, option")) continue;
      const style = getComputedStyle(node);
      const hidesX = ["hidden", "clip"].includes(style.overflowX);
      const hidesY = ["hidden", "clip"].includes(style.overflowY);
      const shortened = style.textOverflow === "ellipsis" && node.closest("[title]");
      if (hidesX && node.scrollWidth > node.clientWidth + 1 && !shortened) {
        found.push(`${name(node)}: ${node.scrollWidth} wide in ${node.clientWidth}`);
      }
      if (hidesY && node.scrollHeight > node.clientHeight + 2 && style.webkitLineClamp === "none") {
        found.push(`${name(node)}: ${node.scrollHeight} high in ${node.clientHeight}`);
      }
      const box = node.getBoundingClientRect();
      for (let parent = node.parentElement; parent; parent = parent.parentElement) {
        const around = getComputedStyle(parent);
        if (scrolls(around, "X") || parent === document.body) break;
        if (!["hidden", "clip"].includes(around.overflowX)) continue;
        const frame = parent.getBoundingClientRect();
        if (box.right > frame.right + 1 || box.left < frame.left - 1) {
          const cell = node.closest("[title]");
          if (!cell) found.push(`${name(node)}: cut off by ${name(parent)}`);
          break;
        }
      }
    }
    return found;
  }

  // Text that a program has made of a value it did not expect.
  function mistakes() {
    const text = document.body.innerText;
    return text.match(/.*(\[object |\bundefined\b|\bNaN\b|\bnull\b|\bInfinity\b).*/g) || [];
  }

  const CONTROLS =
    "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]";

  // What Tab has to reach. A group with one tab stop (tabs, a grid, radio buttons) counts once.
  function controls() {
    const dialog = [...document.querySelectorAll("dialog[open]")].pop();
    return [...(dialog || document).querySelectorAll(CONTROLS)].filter((node) => {
      if (node.disabled || node.tabIndex < 0 || !visible(node) || node.closest("[inert]")) {
        return false;
      }
      if (node.type !== "radio") return true;
      const group = document.querySelectorAll(`input[type=radio][name="${node.name}"]`);
      return node.checked || (![...group].some((each) => each.checked) && node === group[0]);
    });
  }

  const LOOK = ["outlineStyle", "outlineWidth", "outlineColor", "boxShadow", "borderColor",
    "backgroundColor", "textDecorationLine"];

  function look(node) {
    const style = getComputedStyle(node);
    const outline = style.outlineStyle === "none" ? "" : style.outlineWidth + style.outlineColor;
    return [outline, ...LOOK.slice(3).map((property) => style[property])].join("|");
  }

  let before = new Map();

  window.measured = {
    shifts: () => shifts,
    resetShifts: () => shifts.splice(0),
    boxes: (selector) =>
      [...document.querySelectorAll(selector)].filter(visible).map((node) => {
        const { x, y, width, height } = node.getBoundingClientRect();
        return { name: name(node), box: [x, y + scrollY, width, height].map(Math.round) };
      }),
    cutOff,
    mistakes,
    // Marks the controls; `focused` then says which of them has the focus.
    mark() {
      document.activeElement?.blur();
      before = new Map(controls().map((node) => [node, look(node)]));
      return [...before.keys()].map(name);
    },
    focused() {
      const node = document.activeElement;
      if (!node || node === document.body) return null;
      const number = [...before.keys()].indexOf(node);
      return { number, name: name(node), seen: before.get(node) !== look(node) };
    },
  };
})();
