// The timetable, in the browser: the demo needs no server but one for files.
const FLIGHTS = [
  {number: 'DM101', from: 'MAD', to: 'LIS', leaves: '07:15', arrives: '07:40', price: 49},
  {number: 'DM103', from: 'MAD', to: 'LIS', leaves: '16:30', arrives: '16:55', price: 72.5},
  {number: 'DM220', from: 'MAD', to: 'OSL', leaves: '09:05', arrives: '13:10', price: 118},
  {number: 'DM221', from: 'OSL', to: 'MAD', leaves: '14:00', arrives: '18:05', price: 121},
];
const query = new URLSearchParams(location.search);
const money = number => `€${number.toFixed(2)}`;
const matching = () => FLIGHTS.filter(one => one.from === (query.get('origin') ?? '').toUpperCase()
  && one.to === (query.get('destination') ?? '').toUpperCase());
const flight = () => FLIGHTS.find(one => one.number === query.get('flight'));
const told = (name, lead) => `${lead} ${flight().number}-${(name || 'X').slice(0, 3).toUpperCase()}`;
