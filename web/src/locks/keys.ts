// The keyboard. Letters and signs can be switched off (in the help): some people's software types them.

import type { RefObject } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import type { ListHandle } from './list';

interface Keys {
  letters: boolean;
  enabled: boolean;
  list: RefObject<Moves | null>;
  /** Only leases are searched, opened from a marked row, and revoked. */
  search?: RefObject<HTMLInputElement | null>;
  onOpen?: () => void;
  onRevoke?: () => void;
  onEscape: () => void;
  onHelp: () => void;
  /** The tab at a place, counted from 1. */
  onTab: (place: number) => void;
}

/** What keys move in: rows with a mark, or buttons with the focus. */
export type Moves = Pick<ListHandle, 'move' | 'jump' | 'focus'>;

export function useKeys(keys: Keys): void {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (!latest.current.enabled || event.defaultPrevented || event.isComposing) return;
      // A dialog has the keys. Asked of the document, which knows at once that it was closed: the page learns of it later,
      // and a key may come between.
      if (document.querySelector('dialog[open]') !== null) return;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (handle(latest.current, event)) event.preventDefault();
    };
    document.addEventListener('keydown', pressed);
    return () => document.removeEventListener('keydown', pressed);
  }, []);
}

/** Says whether the key was ours. */
function handle(keys: Keys, event: KeyboardEvent): boolean {
  const at = event.target instanceof Element ? event.target : document.body;
  if (event.key === 'Escape') {
    keys.onEscape();
    return true;
  }
  if (at === keys.search?.current) return fromSearch(keys, event.key);
  if (at.matches('input, textarea, select')) return false;
  const inList = at.id === 'list';
  if ((inList || at === document.body || at.matches('.opener')) && move(keys, event.key)) return true;
  if (inList && keys.onOpen !== undefined && event.key === 'Enter') {
    keys.onOpen();
    return true;
  }
  return keys.letters && letter(keys, event.key);
}

function fromSearch(keys: Keys, key: string): boolean {
  if (key !== 'ArrowDown' && key !== 'Enter') return false;
  keys.list.current?.focus();
  return true;
}

function move({ list }: Keys, key: string): boolean {
  const rows = list.current;
  if (rows === null) return false;
  if (key === 'ArrowDown') rows.move(1);
  else if (key === 'ArrowUp') rows.move(-1);
  else if (key === 'Home') rows.jump('first');
  else if (key === 'End') rows.jump('last');
  else if (key === 'PageDown') rows.jump('down');
  else if (key === 'PageUp') rows.jump('up');
  else return false;
  rows.focus();
  return true;
}

function letter(keys: Keys, key: string): boolean {
  const rows = keys.list.current;
  if (key === '/' && keys.search !== undefined) {
    keys.search.current?.focus();
    keys.search.current?.select();
  } else if (key === 'j' || key === 'k') {
    rows?.move(key === 'j' ? 1 : -1);
    rows?.focus();
  } else if (key === 'r' && keys.onRevoke !== undefined) keys.onRevoke();
  else if (key === '?') keys.onHelp();
  else if (/^[1-9]$/.test(key)) keys.onTab(Number(key));
  else return false;
  return true;
}
