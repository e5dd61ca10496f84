// How the server is asked. Keys and tickets travel in headers, never in an address.

/** The server's considered answer that it will not, by its stable code. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    /** The whole body: some refusals say more (which seats, what instead). */
    readonly body: Record<string, unknown> = {},
  ) {
    super(detail);
  }
}

const keyItem = 'leasehold.key';

/** The operator's key, kept for this tab only (sessionStorage). */
export const key = {
  get: (): string | null => sessionStorage.getItem(keyItem),
  set: (value: string) => sessionStorage.setItem(keyItem, value),
  forget: () => sessionStorage.removeItem(keyItem),
  /** A header cannot carry everything that can be pasted into a field. */
  usable: (value: string) => /^[\x21-\x7e]+$/.test(value),
};

export function bearer(secret: string | null): Record<string, string> {
  return secret === null ? {} : { Authorization: `Bearer ${secret}` };
}

/** An answer that takes longer than this is no answer: the page says so instead of waiting in silence. */
const patience = 20_000;

export async function send(path: string, init: RequestInit, secret: string | null): Promise<Response> {
  const answer = await fetch(path, {
    cache: 'no-store',
    credentials: 'omit',
    redirect: 'error',
    signal: AbortSignal.timeout(patience),
    ...init,
    headers: { ...bearer(secret), ...(init.headers as Record<string, string> | undefined) },
  });
  if (!answer.ok) throw await problem(answer);
  return answer;
}

/** Asks with the operator's key, if there is one. */
export async function ask(path: string, init: RequestInit = {}, secret: string | null = key.get()): Promise<unknown> {
  const answer = await send(path, init, secret);
  return answer.status === 204 ? null : answer.json();
}

export async function problem(answer: Response): Promise<Problem> {
  const said = (await answer.json().catch(() => ({}))) as { code?: string; detail?: string; title?: string };
  const sentence = said.detail ?? said.title ?? `The server answered ${answer.status}.`;
  return new Problem(answer.status, said.code ?? 'unknown', sentence, said);
}

/** What to say of a call that failed. No answer is no refusal: what became of it is not known. */
export const sentence = (error: unknown): string =>
  error instanceof Problem ? error.message : 'The server does not answer. Nothing is known of what became of it.';
