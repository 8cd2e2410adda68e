// Weights of search results: pages and sections rank above attributes of classes.
var Scorer = {
  objNameMatch: 6, objPartialMatch: 1, objPrio: { 0: 0, 1: 0, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 1,
};
