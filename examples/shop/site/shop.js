// The catalogue and the cart, both in the browser: the demo needs no server but one for files.
const PRODUCTS = [
  {id: 'blue-mug', name: 'Blue mug', price: 12.5, about: 'Stoneware, 300 ml.'},
  {id: 'white-mug', name: 'White mug', price: 11, about: 'Porcelain, 250 ml.'},
  {id: 'tea-pot', name: 'Tea pot', price: 34.9, about: 'Cast iron, one litre.'},
  {id: 'oak-tray', name: 'Oak tray', price: 28, about: 'Solid oak, 40 cm.'},
  {id: 'honey-spoon', name: 'Honey spoon', price: 4.2, about: 'Olive wood.', sold: true},
];
const query = new URLSearchParams(location.search);
const money = number => `€${number.toFixed(2)}`;
const matching = words => PRODUCTS.filter(one => one.name.toLowerCase().includes((words ?? '').toLowerCase()));
const product = () => PRODUCTS.find(one => one.id === query.get('id'));
const cart = () => JSON.parse(localStorage.getItem('cart') ?? '[]');
const keep = lines => localStorage.setItem('cart', JSON.stringify(lines));
const put = (id, count) => keep([...cart().filter(one => one.id !== id), {id, count}]);
const total = () => cart().reduce((sum, one) => sum + one.count * PRODUCTS.find(each => each.id === one.id).price, 0);
