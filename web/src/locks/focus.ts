// The focus is never lost. Rows, buttons and whole panes go when the server says so, also while they have the
// focus; the browser then puts it on the body, where a keyboard user has to begin again from the top.
//
// Law: when what had the focus leaves the document, the nearest thing that stays takes it, before the next key.
// Changes of the document are told in the microtask after they were made, and keys come as tasks.

/** Where the focus goes, the nearest first. */
const refuges = ['dialog[open] button', '#detail-title', '#key', '#list', '#main'];

export function keepFocus(root: HTMLElement): () => void {
  let last: EventTarget | null = null;
  const focused = (event: FocusEvent) => (last = event.target);
  // Who clicks beside everything wants the focus nowhere.
  const pressed = () => (last = null);
  const changed = () => {
    if (document.activeElement !== document.body || !(last instanceof Element) || last.isConnected) return;
    last = null;
    for (const refuge of refuges) {
      const element = root.querySelector<HTMLElement>(refuge);
      element?.focus();
      if (element !== null && document.activeElement === element) return;
    }
  };
  const observer = new MutationObserver(changed);
  observer.observe(root, { childList: true, subtree: true });
  document.addEventListener('focusin', focused);
  document.addEventListener('pointerdown', pressed, true);
  return () => {
    observer.disconnect();
    document.removeEventListener('focusin', focused);
    document.removeEventListener('pointerdown', pressed, true);
  };
}
