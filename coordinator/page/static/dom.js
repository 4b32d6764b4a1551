// @ts-check
// Describing what is to be seen, and changing the document to it in place.
//
// Views are functions from state to descriptions; `patch` makes the document agree with them and
// keeps every node that still stands for the same thing, so that focus, selections and what is
// being typed outlive new data. Texts become text nodes and nothing else: no markup is ever read.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "line", "path", "polyline", "circle", "text", "title"]);

/**
 * @typedef {object} Node
 * @property {string} tag
 * @property {Record<string, any>} props
 * @property {string | number | undefined} key
 * @property {(Node | string)[]} children
 */

/** @type {WeakMap<globalThis.Node, {vnode: Node, listeners: Record<string, (event: any) => void>}>} */
const known = new WeakMap();

/**
 * Describe an element.
 *
 * Properties are attributes, and besides: `key` (which of its siblings it is), `on` (listeners by
 * event), `initial` (a field's value when it is made, later the user's), `made` (called with the
 * new element once it is in the document), `memo` (while it is the same value, nothing below is
 * looked at).
 *
 * @param {string} tag
 * @param {Record<string, any> | null} [props]
 * @param {...any} children descriptions, texts, numbers, lists of these; null and false are nothing
 * @returns {Node}
 */
export function h(tag, props, ...children) {
  const flat = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return {
    tag,
    props: props ?? {},
    key: props?.key,
    children: flat.map((child) => (typeof child === "object" ? child : String(child))),
  };
}

/**
 * Make an element's children agree with their descriptions.
 *
 * @param {Element} parent
 * @param {(Node | string | null | false | undefined)[]} wanted
 */
export function patch(parent, wanted) {
  const children = wanted.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  const nodes = match(parent, children);
  const kept = new Set(nodes);
  for (const old of [...parent.childNodes]) if (!kept.has(old)) old.remove();
  let place = parent.firstChild;
  children.forEach((child, index) => {
    let node = nodes[index];
    if (node === undefined) {
      node = create(child, parent);
      parent.insertBefore(node, place);
    } else if (node === place) {
      place = place.nextSibling;
    } else {
      parent.insertBefore(node, place);
    }
    if (typeof child === "string") {
      if (node.nodeValue !== child) node.nodeValue = child;
    } else {
      update(/** @type {Element} */ (node), child);
    }
  });
}

/** Which of the present children stands for which of those wanted. */
function match(parent, children) {
  const keyed = new Map();
  const others = [];
  for (const node of parent.childNodes) {
    const key = known.get(node)?.vnode.key;
    if (key === undefined) others.push(node);
    else keyed.set(`${node.nodeName.toLowerCase()} ${key}`, node);
  }
  let next = 0;
  return children.map((child) => {
    if (typeof child !== "string" && child.key !== undefined) return keyed.get(`${child.tag.toLowerCase()} ${child.key}`);
    const name = typeof child === "string" ? "#text" : child.tag.toLowerCase();
    for (let at = next; at < others.length; at += 1) {
      if (others[at].nodeName.toLowerCase() === name) {
        next = at + 1;
        return others[at];
      }
    }
    return undefined;
  });
}

function create(child, parent) {
  if (typeof child === "string") return document.createTextNode(child);
  const inSvg = SVG_TAGS.has(child.tag) && (child.tag === "svg" || parent.namespaceURI === SVG);
  return inSvg ? document.createElementNS(SVG, child.tag) : document.createElement(child.tag);
}

/** @param {Element} node @param {Node} vnode */
function update(node, vnode) {
  let entry = known.get(node);
  const isNew = entry === undefined;
  if (entry === undefined) {
    entry = { vnode: { tag: vnode.tag, props: {}, key: vnode.key, children: [] }, listeners: {} };
    known.set(node, entry);
  }
  const old = entry.vnode;
  if (!isNew && vnode.props.memo !== undefined && vnode.props.memo === old.props.memo) return;
  entry.vnode = vnode;
  setAttributes(node, old.props, vnode.props);
  listen(node, entry, vnode.props.on ?? {});
  patch(node, vnode.children);
  if (isNew && vnode.props.initial !== undefined) setInitial(node, vnode.props.initial);
  if (isNew && vnode.props.made) queueMicrotask(() => node.isConnected && vnode.props.made(node));
}

const NO_ATTRIBUTES = new Set(["key", "on", "initial", "made", "memo"]);

function setAttributes(node, old, wanted) {
  for (const name of Object.keys(old)) if (!(name in wanted) && !NO_ATTRIBUTES.has(name)) node.removeAttribute(name);
  for (const [name, value] of Object.entries(wanted)) {
    if (NO_ATTRIBUTES.has(name)) continue;
    if (value === false || value === null || value === undefined) {
      node.removeAttribute(name);
    } else {
      const text = value === true ? "" : String(value);
      if (node.getAttribute(name) !== text) node.setAttribute(name, text);
    }
  }
}

function listen(node, entry, wanted) {
  for (const type of Object.keys(wanted)) {
    if (!(type in entry.listeners)) node.addEventListener(type, (event) => entry.listeners[type]?.(event));
  }
  entry.listeners = wanted;
}

function setInitial(node, value) {
  if (typeof value === "boolean") node.checked = value;
  else node.value = value;
}
