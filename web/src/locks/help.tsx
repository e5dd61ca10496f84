// The shortcuts, and what the words on the page mean.

import { promiseNames } from './api';
import { Dialog } from '../shared/bits';
import { promises } from './head';
import { meanings as runMeanings, signs } from './recipes/describe';
import type { RunState } from './recipes/api';
import { figureMeanings } from './recipes/queues';

const shortcuts: [string[], string][] = [
  [['1', '2', '3', '4'], 'the tab at that place'],
  [['←', '→', 'Home', 'End'], 'on a tab: to the other tabs'],
  [['/'], 'search (leases)'],
  [['j', '↓'], 'next line of the list'],
  [['k', '↑'], 'previous line'],
  [['Home', 'End', 'PgUp', 'PgDn'], 'jump in the list'],
  [['Enter'], 'open what is marked'],
  [['Esc'], 'close it, or clear the search'],
  [['r'], 'revoke a lease (role admin)'],
  [['?'], 'this help'],
];

interface Props {
  letters: boolean;
  onLetters: (on: boolean) => void;
  onClose: () => void;
}

export function Help({ letters, onLetters, onClose }: Props) {
  return (
    <Dialog title="Help" onClose={onClose}>
      <h3>Keys</h3>
      <dl class="shortcuts">
        {shortcuts.map(([keys, does]) => (
          <div>
            <dt>
              {keys.map((name) => (
                <kbd>{name}</kbd>
              ))}
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input type="checkbox" checked={letters} onChange={(event) => onLetters(event.currentTarget.checked)} />
        Letters and signs work as shortcuts
      </label>
      <h3>Runs of a schedule</h3>
      <dl class="meanings">
        {(Object.keys(signs) as RunState[]).map((state) => (
          <div>
            <dt>
              <span aria-hidden="true">{signs[state]}</span> {state}
            </dt>
            <dd>{runMeanings[state]}</dd>
          </div>
        ))}
      </dl>
      <h3>Jobs of a queue</h3>
      <dl class="meanings">
        {Object.entries(figureMeanings).map(([name, means]) => (
          <div>
            <dt>{name}</dt>
            <dd>{means}</dd>
          </div>
        ))}
      </dl>
      <p class="quiet">A plus after a figure: the server stopped counting there.</p>
      <h3>What an engine can promise</h3>
      <dl class="meanings">
        {promiseNames.map((name) => (
          <div>
            <dt>{promises[name].word}</dt>
            <dd>{promises[name].means}</dd>
          </div>
        ))}
      </dl>
      <p class="quiet">
        A lease ends by its owner (released), by time (lapsed) or by an operator (revoked). Its token rises with every
        grant and stays the same through renewals; a resource that checks it refuses whoever comes too late.
      </p>
      <div class="actions">
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
