// Requests to the server that this page came from.

const TOKEN = "baton.token";

export class ApiError extends Error {
  constructor(status, message, param) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export const token = () => sessionStorage.getItem(TOKEN);
export function set_token(value) {
  if (value) sessionStorage.setItem(TOKEN, value);
  else sessionStorage.removeItem(TOKEN);
}

function headers(body) {
  const all = {};
  if (body !== undefined) all["Content-Type"] = "application/json";
  if (token()) all.Authorization = `Bearer ${token()}`;
  return all;
}

async function send(method, path, body, signal) {
  let response;
  try {
    response = await fetch(path, { method, headers: headers(body), body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new ApiError(0, "The server does not answer.");
  }
  if (response.ok) return response;
  if (response.status === 401) document.dispatchEvent(new Event("baton:login"));
  let message = `${response.status} ${response.statusText}`, param;
  try {
    const answer = await response.json();
    message = answer.error?.message || (typeof answer.detail === "string" ? answer.detail : message);
    param = answer.error?.param;
  } catch { /* no JSON: the status line has to do */ }
  throw new ApiError(response.status, message, param);
}

/** The JSON answer of a request. Throws ApiError. */
export async function call(method, path, body, signal) {
  const response = await send(method, path, body, signal);
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

export const get = (path, signal) => call("GET", path, undefined, signal);
export const text_of = async (path, signal) => (await send("GET", path, undefined, signal)).text();
export const segment = encodeURIComponent;

/** The events of a streamed answer, parsed. Throws ApiError where the stream ends with an error frame or is cut. */
export async function* stream(path, body, signal) {
  const response = await send("POST", path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (fault) {
      if (fault.name === "AbortError") throw fault;
      throw new ApiError(0, "The stream was cut.");
    }
    if (chunk.done) throw new ApiError(0, "The stream ended before its answer did.");
    const frames = (rest + chunk.value).split(/\r?\n\r?\n/);
    rest = frames.pop();
    for (const frame of frames) {
      const data = frame.split(/\r?\n/).filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trimStart()).join("\n");
      if (!data) continue;
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new ApiError(event.error.code || 0, event.error.message || "The request failed.");
      yield event;
    }
  }
}
