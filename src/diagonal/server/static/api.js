/** Addresses of this server, with the token of the page's own address where it has one. */

const token = new URLSearchParams(location.search).get("token");

/** The address of a path, with the token. */
export function address(path, query = {}) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  if (token !== null) url.searchParams.set("token", token);
  return url;
}

/** The address of a socket. */
export function socketAddress(path, query) {
  const url = address(path, query);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url;
}

/** The models that this server offers. */
export async function models() {
  const answer = await fetch(address("/v1/models"));
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error?.message ?? `the server answered ${answer.status}`);
  return found.data;
}

/** Offer a file that was made in the page. */
export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
