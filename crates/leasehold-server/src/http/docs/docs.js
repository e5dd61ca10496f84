// Renders /openapi.json. Text goes in as text, never as markup.
"use strict";

const make = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

const nameOf = (ref) => ref.split("/").pop();

const typeOf = (schema) => {
  if (!schema) return "";
  if (schema.$ref) return make("a", { href: `#schema-${nameOf(schema.$ref)}` }, nameOf(schema.$ref));
  const span = make("span");
  if (schema.oneOf) {
    schema.oneOf.forEach((one, at) => span.append(at ? " or " : "", typeOf(one)));
  } else if (schema.type === "array") {
    span.append("list of ", typeOf(schema.items));
  } else if (schema.enum) {
    span.append(schema.enum.map((word) => JSON.stringify(word)).join(" | "));
  } else {
    span.append([schema.type].flat().join(" or "));
  }
  return span;
};

const table = (headings, rows) =>
  make("table", {}, make("thead", {}, make("tr", {}, ...headings.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, cell))))));

const curl = (method, path, operation) => {
  const lines = [`curl -s ${method === "GET" ? "" : `-X ${method} `}${location.origin}${path}`];
  if (operation.security === undefined) lines.push(`  -H "Authorization: Bearer $LEASEHOLD_API_KEY"   # on a server with keys`);
  if (operation.requestBody) lines.push(`  -H "Content-Type: application/json"`, `  -d '{…}'`);
  return lines.join("\n");
};

const content = (response) =>
  Object.entries(response.content ?? {}).map(([kind, { schema }]) => make("span", {}, typeOf(schema), ` (${kind})`));

const operationOf = (method, path, operation) => {
  const section = make("section", { id: operation.operationId ?? `${method}-${path}` },
    make("h3", {}, make("span", { class: "method" }, method), make("code", {}, path)),
    make("p", {}, operation.summary ?? ""));
  if (operation.description) section.append(make("p", { class: "quiet" }, operation.description));
  section.append(make("pre", {}, curl(method, path, operation)));
  if (operation.parameters?.length) {
    section.append(table(["Parameter", "In", "Type", ""], operation.parameters.map((parameter) =>
      [make("code", {}, parameter.name), parameter.in, typeOf(parameter.schema), parameter.description ?? ""])));
  }
  if (operation.requestBody) {
    section.append(make("p", {}, "Body: ", typeOf(operation.requestBody.content["application/json"].schema)));
  }
  section.append(table(["Status", "Meaning", "Body"], Object.entries(operation.responses).map(([status, response]) =>
    [make("code", {}, status), response.description, make("span", {}, ...content(response))])));
  return section;
};

const schemaOf = (name, schema) => make("section", { id: `schema-${name}` },
  make("h3", {}, name),
  table(["Field", "Type", ""], Object.entries(schema.properties ?? {}).map(([field, inner]) =>
    [make("code", {}, field + (schema.required?.includes(field) ? "" : "?")), typeOf(inner), inner.description ?? ""])));

const codesOf = (api) => {
  const seen = new Map();
  for (const methods of Object.values(api.paths)) for (const operation of Object.values(methods)) {
    for (const [status, response] of Object.entries(operation.responses)) {
      if (!response.content?.["application/problem+json"]) continue;
      const [codes, meaning] = response.description.split(": ");
      for (const code of codes.split(", ")) {
        const entry = seen.get(code) ?? { statuses: new Set(), meaning };
        seen.set(code, { ...entry, statuses: entry.statuses.add(status) });
      }
    }
  }
  return table(["Code", "Status", "Meaning"], [...seen].sort().map(([code, { statuses, meaning }]) =>
    [make("code", { id: `code-${code}` }, code), [...statuses].sort().join(", "), meaning ?? ""]));
};

const show = (api) => {
  const main = document.getElementById("main");
  main.replaceChildren(
    make("h1", {}, `${api.info.title} ${api.info.version}`),
    make("p", {}, api.info.description),
    make("p", {}, make("a", { href: "/openapi.json" }, "openapi.json"), " · ", make("a", { href: "/locks" }, "what is held")),
    make("h2", {}, "Requests"),
    ...Object.entries(api.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => operationOf(method.toUpperCase(), path, operation))),
    make("h2", {}, "Codes of problems"), codesOf(api),
    make("h2", {}, "Shapes"),
    ...Object.entries(api.components.schemas).map(([name, schema]) => schemaOf(name, schema)));
  main.removeAttribute("aria-busy");
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
};

fetch("/openapi.json")
  .then((response) => response.json())
  .then(show)
  .catch((error) => document.getElementById("main").replaceChildren(`The description could not be read: ${error}`));
