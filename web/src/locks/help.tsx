// The shortcuts, and what the words on the page mean.

import { promiseNames } from './api';
import { Dialog } from '../shared/bits';
import { promises } from './head';

const shortcuts: [string[], string][] = [
  [['/'], 'search'],
  [['j', '↓'], 'next resource'],
  [['k', '↑'], 'previous resource'],
  [['Home', 'End', 'PgUp', 'PgDn'], 'jump in the list'],
  [['Enter'], 'open the resource'],
  [['Esc'], 'close it, or clear the search'],
  [['r'], 'revoke (role admin)'],
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
