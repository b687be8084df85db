// Redesigns a page, as a seed says. The element with data-truth is the one that was meant; it is never told apart by that.
({kinds, seed}) => {
  let state = seed >>> 0;
  const random = () => {
    state = (state + 0x6D2B79F5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const pick = list => list[Math.floor(random() * list.length)];
  const shuffled = list => list.map(one => [random(), one]).sort((a, b) => a[0] - b[0]).map(pair => pair[1]);
  const code = () => Math.floor(random() * 1e9).toString(36);
  const target = () => document.querySelector('[data-truth]');
  const all = selector => [...document.body.querySelectorAll(selector)];
  const SAY = {search: ['find', 'search flights', 'go search'], 'add to cart': ['add to basket', 'add to bag', 'add item to cart'],
    'sign in': ['log in', 'sign in now'], 'log in': ['sign in'], save: ['save changes'], 'send message': ['send', 'submit message'],
    'place order': ['place your order'], checkout: ['check out', 'go to checkout'], email: ['e-mail', 'email address'],
    from: ['origin', 'flying from'], to: ['destination', 'flying to'], continue: ['next'], subscribe: ['subscribe now'],
    password: ['your password'], message: ['your message'], quantity: ['qty'], city: ['town or city'],
    'post comment': ['post your comment'], apply: ['apply filters'], export: ['export csv']};
  const DECOYS = {button: ['Cancel', 'Delete', 'Close', 'Remove', 'Get premium', 'Reset', 'Share', 'Print', 'Help', 'Back'],
    link: ['Advertisement', 'Terms', 'Help', 'Careers', 'Log out', 'Delete account'],
    textbox: ['Coupon code', 'Company', 'Nickname', 'Referral'], select: ['Currency', 'Language', 'Theme'],
    checkbox: ['Send me offers', 'Share my data']};
  const roleOf = one => one.getAttribute('role') ?? (one.tagName === 'A' ? 'link' : one.tagName === 'SELECT' ? 'select'
    : one.tagName === 'BUTTON' || one.type === 'submit' ? 'button' : one.type === 'checkbox' ? 'checkbox' : 'textbox');
  const labelOf = one => one.labels?.[0] ?? null;
  const rename = (one, next) => {
    for (const label of all(`label[for="${one.id}"]`)) next ? label.setAttribute('for', next) : label.removeAttribute('for');
    if (!next && labelOf(one) === null && one.dataset.kept) one.setAttribute('aria-label', one.dataset.kept);
    next ? one.id = next : one.removeAttribute('id');
  };
  const turned = text => { const parts = text.split(/[-_]/).reverse();
    return parts[0] + parts.slice(1).map(one => one[0].toUpperCase() + one.slice(1)).join('') + pick(parts.length > 1 ? ['', '2', 'New'] : ['2', 'New', 'Box']); };
  const textNodes = one => { const walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT); const found = [];
    while (walker.nextNode()) if (walker.currentNode.textContent.trim()) found.push(walker.currentNode); return found; };
  const reword = text => {
    const plain = text.trim().toLowerCase(), found = SAY[plain];
    if (!found) return null;
    const next = pick(found);
    return next[0].toUpperCase() + next.slice(1);
  };
  const said = one => ['A', 'BUTTON'].includes(one.tagName) || ['button', 'link', 'tab'].includes(roleOf(one));
  const made = (one, words) => {
    const role = roleOf(one), copy = one.cloneNode(true);
    copy.removeAttribute('data-truth'); copy.id = 'x' + code(); copy.removeAttribute('data-testid');
    copy.removeAttribute('name'); copy.removeAttribute('placeholder'); copy.removeAttribute('href'); copy.removeAttribute('aria-label');
    if (role === 'link') copy.href = '/other/' + words.toLowerCase().replace(/ /g, '-');
    if (said(one)) { copy.tagName === 'INPUT' ? copy.value = words : copy.textContent = words; return copy; }
    const label = document.createElement('label'); label.append(words + ' ', copy); return label;
  };
  // A decoy that is called like the element itself would be no decoy.
  const others = one => { const own = one.getAttribute('aria-label') || labelOf(one)?.innerText || one.innerText || one.value || '';
    return (DECOYS[roleOf(one)] ?? DECOYS.button).filter(each => each.toLowerCase() !== own.trim().toLowerCase()); };
  const KINDS = {
    ids: () => { for (const one of all('[id]')) { const way = random();
      const label = labelOf(one); if (label) one.dataset.kept = label.innerText.trim();
      rename(one, way < 0.3 ? '' : way < 0.65 ? 'c' + code() : turned(one.id)); delete one.dataset.kept; } },
    classes: () => { const names = new Map(); for (const one of all('[class]')) one.className = [...one.classList]
      .map(each => names.get(each) ?? names.set(each, random() < 0.5 ? 'css-' + code() : 'ui-' + turned(each)).get(each)).join(' '); },
    marks: () => { for (const one of all('[data-testid]')) random() < 0.5 ? one.removeAttribute('data-testid')
        : one.dataset.testid = turned(one.dataset.testid);
      for (const one of all('[name]')) if (random() < 0.4) one.setAttribute('name', turned(one.getAttribute('name')));
      for (const one of all('[placeholder]')) if (random() < 0.3) one.removeAttribute('placeholder'); },
    order: () => { const boxes = new Set([target()?.parentElement, target()?.parentElement?.parentElement,
        ...shuffled(all('form, ul, nav, section, fieldset, main, tbody')).slice(0, 3)].filter(Boolean));
      for (const box of boxes) if (box !== document.documentElement) for (const one of shuffled([...box.children])) box.append(one); },
    wrappers: () => { for (const one of [target(), ...shuffled(all('button, input, a, select, p, form, section')).slice(0, 8)]) {
      if (!one || !one.parentElement || ['UL', 'TR', 'TBODY', 'SELECT'].includes(one.parentElement.tagName)) continue;
      for (let depth = 1 + Math.floor(random() * 2); depth > 0; depth--) {
        const box = document.createElement(pick(['div', 'span', 'section'])); box.className = 'w-' + code();
        one.replaceWith(box); box.append(one); } } },
    texts: () => { for (const one of shuffled(all('button, a, label, h1, h2, h3, legend, p'))) for (const node of textNodes(one)) {
        const next = random() < 0.6 ? reword(node.textContent) : null; if (next) node.textContent = next; }
      for (const one of all('h1, h2, p')) if (random() < 0.4) one.append(pick([' today', ' online', ' in one minute', ' with us'])); },
    tags: () => { for (const one of all('button')) { const way = random(); if (way > 0.6) continue;
        const next = document.createElement(way < 0.3 ? 'div' : 'input');
        for (const each of one.attributes) next.setAttribute(each.name, each.value);
        if (way < 0.3) { next.setAttribute('role', 'button'); next.tabIndex = 0; next.textContent = one.textContent; }
        else { next.type = 'submit'; next.value = one.textContent.trim(); }
        one.replaceWith(next); }
      for (const one of all('input[type=text]')) if (random() < 0.3) one.type = 'search'; },
    labels: () => { for (const label of all('label')) { const one = label.control; if (!one || random() < 0.5) continue;
        const words = label.innerText.trim();
        if (random() < 0.5) { one.setAttribute('aria-label', words); if (!label.contains(one)) label.remove(); }
        else if (!label.contains(one) && one.tagName === 'INPUT') { one.placeholder = words; label.remove(); } } },
    decoys: () => { const one = target(); if (!one) return; const role = roleOf(one);
      const names = others(one);
      for (const words of shuffled(names).slice(0, 2)) one.insertAdjacentElement(pick(['beforebegin', 'afterend']), made(one, words));
      if (random() < 0.5) { const foot = document.createElement('footer'); const form = document.createElement('form');
        const words = one.getAttribute('aria-label') || labelOf(one)?.innerText || one.innerText || one.value || 'More';
        form.append('Our newsletter, every week', made(one, words.trim())); foot.append(form);
        document.body.append(foot); } },
    moved: () => { const one = target(); const block = one?.closest('form, section, nav, article'); if (!block) return;
      const rest = all('main, aside, header, section').filter(each => !block.contains(each)); if (rest.length) pick(rest).append(block); },
    removed: () => { const one = target(); if (!one) return; const role = roleOf(one);
      const words = pick(others(one));
      const decoy = made(one, words); decoy.className = one.className;
      const label = labelOf(one); one.replaceWith(decoy); if (label && label.isConnected) label.remove();
      if (random() < 0.4 && said(one)) { const help = made(one, (one.innerText || one.value) + ' help');
        document.body.append(help); } },
  };
  for (const kind of kinds) KINDS[kind]();
}
