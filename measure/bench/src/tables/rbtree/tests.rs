use rand::Rng;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;

/// Black nodes on every way from `node` down, the node's own colour counted; checks order, links
/// and colours on the way.
fn black_height(tree: &RbTree, node: u32, low: Key, high: Key) -> usize {
    if node == NIL {
        return 1;
    }
    let Node { key, children, colour, .. } = *tree.nodes.at(node);
    assert!(low < key && key < high, "keys are in order");
    for child in children {
        if child != NIL {
            assert_eq!(tree.parent(child), node, "links lead both ways");
            assert!(colour == BLACK || tree.colour(child) == BLACK, "a red node has no red child");
        }
    }
    let left = black_height(tree, children[0], low, key);
    assert_eq!(left, black_height(tree, children[1], key, high), "all ways have as many black nodes");
    left + usize::from(colour == BLACK)
}

fn check(tree: &RbTree) {
    assert!(tree.root == NIL || (tree.colour(tree.root) == BLACK && tree.parent(tree.root) == NIL));
    black_height(tree, tree.root, 0, Key::MAX);
}

#[test]
fn it_stays_a_red_black_tree_whatever_the_order() {
    let mut random = SmallRng::seed_from_u64(1);
    let orders: [Vec<Key>; 3] = [
        (1..3_000).collect(),
        (1..3_000).rev().collect(),
        (1..3_000).map(|_| random.random_range(1..10_000)).collect(),
    ];
    for keys in orders {
        let mut tree = RbTree::new(Size::with_load(3_000, 1)).unwrap();
        for (key, number) in keys.into_iter().zip(0..) {
            tree.find_or_insert(key, number).unwrap();
            if number % 64 == 0 {
                check(&tree);
            }
        }
        check(&tree);
    }
}
