// @ts-check
// Asking the coordinator: answers as JSON, or line by line while something is computed.

/** A request that was refused, or that found nobody. `status` is 0 where nobody answered. */
export class ApiError extends Error {
  /** @param {number} status @param {string} reason @param {string} message */
  constructor(status, reason, message) {
    super(message);
    this.status = status;
    this.reason = reason;
  }
}

/** @type {() => void} */
let signedOut = () => {};

/** Have somebody told when a request finds that the session has ended. @param {() => void} told */
export function onSignedOut(told) {
  signedOut = told;
}

/**
 * @param {string} path
 * @param {object} [body] sent as JSON by POST; GET without one
 * @param {AbortSignal} [signal]
 * @returns {Promise<Response>}
 */
async function send(path, body, signal) {
  const request = body === undefined
    ? { signal }
    : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...request });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "AWAY", "The coordinator does not answer. Once it is back, ask again.");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  if (response.status === 401 && path !== "/api/sign-in") signedOut();
  throw toError(response.status, told);
}

function toError(status, told) {
  const error = told?.error;
  return new ApiError(status, error?.reason ?? "", error?.message ?? `The coordinator answered with status ${status}.`);
}

/** @param {string} path */
export async function get(path) {
  return (await send(path)).json();
}

/** @param {string} path @param {object} body */
export async function post(path, body) {
  return (await send(path, body)).json();
}

/**
 * Ask for what takes a while, which comes as one JSON object a line.
 *
 * @param {string} path
 * @param {object} body
 * @param {(progress: any) => void} onProgress
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>} the last line's object
 */
export async function compute(path, body, onProgress, signal) {
  const response = await send(path, body, signal);
  let last = null;
  try {
    for await (const line of lines(response)) {
      const told = JSON.parse(line);
      if (told.error) throw toError(response.status, told);
      if (told.progress) onProgress(told.progress);
      else last = told;
    }
  } catch (error) {
    if (error instanceof ApiError || signal?.aborted) throw error;
    last = null;
  }
  if (last === null) throw new ApiError(0, "AWAY", "The coordinator went away before it was done. Ask again: what it had finished is kept.");
  return last;
}

/** @param {Response} response */
async function* lines(response) {
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value ?? new Uint8Array(), { stream: !done });
    const parts = rest.split("\n");
    rest = parts.pop() ?? "";
    yield* parts.filter((part) => part.trim() !== "");
    if (done) break;
  }
  if (rest.trim() !== "") yield rest;
}
