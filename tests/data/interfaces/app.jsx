import React from 'react';
export const App = ({ ok, items }) => (
  <section>
    <h1>{title}</h1>
    {ok && <Button onClick={() => go(1 > 0)}>Save</Button>}
    {items.map((i) => <p key={i}>{i.name}</p>)}
    <input type='email' aria-label={t('mail')} />
    <button style={{ color: '#777', width: 20, height: 20 }}>x</button>
  </section>
);
