// One call, told until there is an answer. It carries its key through all attempts, so that it is done once.

import { now } from '../shared/clock';
import { Problem } from '../shared/http';
import type { Api } from '../office/api';
import type { Pending } from './vault';

/** How long to wait before each further attempt; after the last one it is for the buyer to say. */
const pauses = [500, 1500, 4000];

export interface Answer {
  said: unknown;
  /** The moment at which the question that was answered was asked. */
  asked: number;
  /** null: done · a refusal · unknown: it may have been done, or not. */
  problem: Problem | 'unknown' | null;
}

export class Calls {
  constructor(private readonly api: Api) {}

  async insist(pending: Pending, proof: Record<string, string>, renewTicket: () => Promise<boolean>): Promise<Answer> {
    let tickets = 0;
    for (let i = 0; ; i++) {
      const asked = now();
      try {
        const said = await this.api.write('POST', pending.path, pending.body, pending.idem, proof);
        return { said, asked, problem: null };
      } catch (error) {
        if (error instanceof Problem && error.status === 401 && tickets++ === 0 && (await renewTicket())) continue;
        if (isNo(error)) return { said: null, asked, problem: error };
        const pause = pauses[i];
        if (pause === undefined) return { said: null, asked, problem: 'unknown' };
        await new Promise((next) => window.setTimeout(next, pause));
      }
    }
  }
}

/** A considered no. Too busy, broken, or no answer at all are none. */
const isNo = (error: unknown): error is Problem => error instanceof Problem && error.status < 500 && error.status !== 429;
