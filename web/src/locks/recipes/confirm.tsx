// Asks before something is done to a queue, says what will happen, and shows what the server answered.

import { useState } from 'preact/hooks';
import { settled } from './describe';
import type { Recipes } from './recipes';
import { Dialog, Text } from '../../shared/bits';
import { sentence } from '../../shared/http';
import { counted } from '../../shared/words';

export interface Question {
  what: 'retry' | 'drop' | 'pause' | 'resume';
  queue: string;
  /** The dead letters that were shown when it was asked; no others are acted on. */
  jobs: string[];
}

interface Props {
  recipes: Recipes;
  question: Question;
  onClose: () => void;
  onDone: (note: string) => void;
}

const texts = {
  retry: {
    title: 'Retry',
    now: 'Retry now',
    says: [
      'A retried job goes back into the queue as a new one, behind those that wait, and its attempts are counted anew.',
      'What made it fail may still be there. What it did before it failed may be done a second time.',
    ],
  },
  drop: {
    title: 'Drop',
    now: 'Drop now',
    says: ['A dropped job is removed with its body, for good. Nothing brings it back.'],
  },
  pause: {
    title: 'Pause',
    now: 'Pause now',
    says: [
      'Workers are given no more jobs of this queue until it is resumed.',
      'Jobs that are taken already go on, and new ones can still be pushed.',
    ],
  },
  resume: { title: 'Resume', now: 'Resume now', says: ['Workers are given jobs of this queue again, at once.'] },
};

export function Confirm({ recipes, question, onClose, onDone }: Props) {
  const [wrong, setWrong] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);
  const { what, queue, jobs } = question;
  const { title, now, says } = texts[what];
  const submit = async (event: Event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setWrong(null);
    try {
      onDone(await carryOut(recipes, question));
    } catch (error) {
      setWrong(sentence(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={jobs.length === 0 ? title : `${title} ${counted(jobs.length, 'dead letter')}`} onClose={onClose}>
      <form onSubmit={submit}>
        <p class="what">
          <Text of={queue} titled={false} />
        </p>
        <ul class="consequences">
          {jobs.length > 0 && <li>{named(jobs)}</li>}
          {says.map((line) => (
            <li>{line}</li>
          ))}
        </ul>
        {wrong !== null && (
          <p class="wrong" role="alert">
            {wrong}
          </p>
        )}
        <div class="actions">
          <button type="button" onClick={onClose}>
            Leave it as it is
          </button>
          <button type="submit" class={what === 'drop' ? 'danger' : 'primary'} aria-disabled={busy}>
            {busy ? 'Asking the server…' : now}
          </button>
        </div>
      </form>
    </Dialog>
  );
}

const shownNames = 20;

function named(jobs: string[]): string {
  const rest = jobs.length - shownNames;
  const first = jobs.slice(0, shownNames).join(', ');
  return `${jobs.length === 1 ? 'Job' : 'Jobs'} ${first}${rest > 0 ? ` and ${counted(rest, 'other')}` : ''}.`;
}

async function carryOut(recipes: Recipes, { what, queue, jobs }: Question): Promise<string> {
  if (what === 'pause' || what === 'resume') {
    await recipes.pause(queue, what === 'pause');
    return what === 'pause' ? 'Paused.' : 'Resumed.';
  }
  return settled(what, jobs.length, await recipes.settle(queue, what, jobs));
}
