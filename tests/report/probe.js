// What is wrong with the whole page in a window: too wide, cut, overprinted, too faint, too small, printed twice.

const channels = (color) => color.match(/[\d.]+/g)?.map(Number) ?? [];
const seen = (color) => channels(color).length === 3 || channels(color)[3] > 0;

function luminance(color) {  // of WCAG 2
  const [r, g, b] = channels(color).map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(first, second) {
  const [dark, light] = [luminance(first), luminance(second)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
}

function colorBehind(view, element, box) {  // under the middle of a text; nothing where the text is scrolled away
  const layers = view.document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
  if (!layers.some((layer) => element.contains(layer))) return null;
  const painted = layers.filter((layer) => !layer.matches("text, svg")).map((layer) => {
    const style = view.getComputedStyle(layer);
    return layer instanceof view.SVGElement ? style.fill : style.backgroundColor;
  });
  return painted.find(seen) ?? "rgb(255, 255, 255)";
}

function scrolls(view, element) {  // sideways, on its own or inside another
  return element !== null && (["auto", "scroll"].includes(view.getComputedStyle(element).overflowX) ||
    scrolls(view, element.parentElement));
}

function problemsOfText(view, element, words) {
  const drawn = element instanceof view.SVGElement, style = view.getComputedStyle(element), found = [];
  const range = view.document.createRange();
  range.selectNodeContents(element);
  const box = (drawn ? element : range).getBoundingClientRect();
  if ((box.right > view.innerWidth + 1 || box.left < -1) && !scrolls(view, element)) found.push("outside");
  if (style.overflowX === "hidden" && element.scrollWidth > element.clientWidth + 1) found.push("cut");
  if (drawn && box.height < 9) found.push("too small");
  const behind = colorBehind(view, element, box);
  if (behind && contrast(drawn ? style.fill : style.color, behind) < 4.5) found.push("too faint");
  return found.map((what) => `${what}: ${words}`);
}

function problemsOfChart(svg) {
  const found = [], edge = svg.getBoundingClientRect();
  const texts = [...svg.querySelectorAll("text")].map((text) => [text.textContent.trim(), text.getBoundingClientRect()]);
  texts.forEach(([words, a], index) => {
    if (a.left < edge.left - 1 || a.right > edge.right + 1 || a.top < edge.top - 1 || a.bottom > edge.bottom + 1)
      found.push(`outside its chart: ${words}`);
    for (const [others, b] of texts.slice(index + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 2) found.push(`overprinted: ${words}, ${others}`);
    }
  });
  const title = svg.closest("figure")?.querySelector("figcaption b").textContent;
  if (texts.some(([words]) => words === title)) found.push(`printed twice: ${title}`);
  return found;
}

function problems(view) {
  const page = view.document, found = [];
  if (page.documentElement.scrollWidth > view.innerWidth) found.push(`wide: ${page.documentElement.scrollWidth}`);
  const content = page.querySelector("article") ?? page.body;  // of the site; the rest is its theme's
  for (const element of content.querySelectorAll("*:not(script, style, option, title, textarea, .hidden)")) {
    const words = [...element.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE)
      .map((node) => node.data).join(" ").trim().slice(0, 40);
    if (words && element.checkVisibility()) found.push(...problemsOfText(view, element, words));
  }
  return found.concat(...[...page.querySelectorAll("svg")].map(problemsOfChart));
}

function look(address, width) {  // the whole page, as high as it is
  return new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.style = `border: 0; width: ${width}px; height: 20000px`;
    frame.onload = () => { done(problems(frame.contentWindow)); frame.remove(); };
    frame.src = address;
    document.body.append(frame);
  });
}

(async () => {
  const found = {};
  for (const address of PAGES) for (const width of [390, 1280]) found[`${address} ${width}`] = await look(address, width);
  const result = document.createElement("pre");
  result.id = "found";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
})();
