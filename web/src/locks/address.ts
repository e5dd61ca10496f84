// What the address remembers: #t=tab&q=search&r=resource&o=schedule or queue. What follows # is not sent to the
// server: a link to what one sees, and nothing in its logs. Pure.

/** What there is beside leases, in the order of the tabs. */
export const kinds = ['elections', 'schedules', 'queues'] as const;
export type Kind = (typeof kinds)[number];
export type View = 'leases' | Kind;

export interface Place {
  view: View;
  /** The search among leases. */
  query: string;
  /** The open resource. */
  resource: string | null;
  /** The open schedule or queue. */
  recipe: string | null;
}

export function fromAddress(hash: string): Place {
  const said = new URLSearchParams(hash.replace(/^#/, ''));
  const view = said.get('t');
  return {
    view: kinds.find((kind) => kind === view) ?? 'leases',
    query: said.get('q') ?? '',
    resource: said.get('r'),
    recipe: said.get('o'),
  };
}

export function toAddress({ view, query, resource, recipe }: Place): string {
  const say = new URLSearchParams();
  if (view !== 'leases') say.set('t', view);
  if (query !== '') say.set('q', query);
  if (resource !== null) say.set('r', resource);
  if (recipe !== null) say.set('o', recipe);
  return say.toString();
}
