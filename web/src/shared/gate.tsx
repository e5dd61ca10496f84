// Asks for an API key. It stays in this tab (sessionStorage) and is sent as a header, never in an address.

import type { ComponentChildren } from 'preact';
import { useLayoutEffect, useRef, useState } from 'preact/hooks';
import { key } from './http';

interface Props {
  /** Why the last key was refused. */
  wrong: string | null;
  action: string;
  onKey: (key: string) => void;
  children: ComponentChildren;
}

export function Gate(props: Props) {
  const field = useRef<HTMLInputElement>(null);
  // Not by `autofocus`, which browsers heed once: the gate also comes back, after a key that was refused.
  useLayoutEffect(() => field.current?.focus(), []);
  const [value, setValue] = useState('');
  const [wrong, setWrong] = useState<string | null>(null);
  const submit = (event: Event) => {
    event.preventDefault();
    const trimmed = value.trim();
    if (key.usable(trimmed)) props.onKey(trimmed);
    else setWrong(trimmed === '' ? 'Please paste a key.' : 'A key has no spaces and only plain characters.');
  };
  const message = wrong ?? props.wrong;
  return (
    <main id="main" class="gate" tabIndex={-1}>
      <form onSubmit={submit} autoComplete="off">
        <h2>This server asks for a key</h2>
        <p>{props.children}</p>
        <label for="key">API key</label>
        <div class="field">
          <input
            id="key"
            ref={field}
            type="password"
            autoComplete="off"
            spellcheck={false}
            value={value}
            aria-describedby="key-note"
            aria-invalid={message !== null}
            onInput={(event) => {
              setValue(event.currentTarget.value);
              setWrong(null);
            }}
          />
          <button type="submit" class="primary">
            {props.action}
          </button>
        </div>
        {message !== null && (
          <p class="wrong" role="alert">
            {message}
          </p>
        )}
        <p id="key-note" class="quiet">
          It is kept for this tab only and is gone when the tab is closed.
        </p>
      </form>
    </main>
  );
}
