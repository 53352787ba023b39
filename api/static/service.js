// Questions to the service that served the page. The key stays in its field, in memory alone.

import { find, say } from "./page.js";

export class Failure extends Error {}

// Paths are relative, so that a proxy can put the service below another path.
const relative = (route) => route.replace(/^\//, "");

export async function call(route, fields) {
  const options = { headers: {}, cache: "no-store" };
  if (find("key").value) options.headers["X-API-Key"] = find("key").value;
  if (fields) {
    options.method = "POST";
    options.body = new FormData();
    for (const [name, value] of Object.entries(fields)) options.body.append(name, value);
  }
  let response;
  try {
    response = await fetch(relative(route), options);
  } catch {
    throw new Failure("The service cannot be reached.");
  }
  if (response.ok) return response;
  if (response.status === 401) throw new Failure(askForKey());
  const body = await response.json().catch(() => ({}));
  throw new Failure(`${body.message ?? "The service failed"} (${body.code ?? response.status}, ${body.request_id ?? "no id"})`);
}

export const ask = async (route, fields) => (await call(route, fields)).json();

function askForKey() {
  find("key-label").classList.add("wanted");
  find("key-form").hidden = false;
  find("key").focus();
  find("key").select();
  return find("key").value ? "The service does not know this API key." : "Enter the API key and press Enter.";
}

// Run work with a spinner on an element; say what failed, and whether nothing did.
export async function guarded(element, work) {
  element.classList.add("busy");
  element.setAttribute("aria-busy", "true");
  try {
    await work();
    return true;
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    say(error.message);
    return false;
  } finally {
    element.classList.remove("busy");
    element.removeAttribute("aria-busy");
  }
}
