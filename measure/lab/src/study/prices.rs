//! The price list of the cost study: a CSV file with `maker,model,mpps,price_usd`. A device without
//! a rate is this Natrix.

use std::fs;
use std::path::Path;

use serde::Deserialize;

/// A device and what it costs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Price {
    /// Who makes it.
    pub maker: String,
    /// Its name.
    pub model: String,
    /// Million packets a second by its maker's word; None where it is to be measured.
    pub mpps: Option<f64>,
    /// US dollars.
    pub price_usd: f64,
}

/// A price list that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("--prices: {file}: cannot be used ({reason}); its lines are maker,model,mpps,price_usd, with this line first")]
pub struct PricesError {
    file: String,
    reason: String,
}

/// The routers of the paper's appendix A (rates with their firewalls on), and the computer it
/// priced at 1 540 USD.
const PAPER: &str = include_str!("../prices.csv");

impl Price {
    /// The list of the paper.
    pub fn of_the_paper() -> Vec<Price> {
        read(PAPER).unwrap_or_default()
    }

    /// A list from a file.
    ///
    /// # Errors
    /// [`PricesError`].
    pub fn from_file(path: &Path) -> Result<Vec<Price>, PricesError> {
        let error = |reason: String| PricesError { file: path.display().to_string(), reason };
        let text = fs::read_to_string(path).map_err(|reason| error(reason.to_string()))?;
        let prices = read(&text).map_err(|reason| error(reason.to_string()))?;
        let is_wrong = |price: &&Price| {
            let positive = |number: f64| number.is_finite() && number > 0.0;
            !positive(price.price_usd) || price.mpps.is_some_and(|mpps| !positive(mpps))
        };
        match prices.iter().find(is_wrong) {
            Some(price) => Err(error(format!("{} {}: a number is not above 0", price.maker, price.model))),
            None if prices.is_empty() => Err(error("no devices".to_owned())),
            None => Ok(prices),
        }
    }
}

fn read(text: &str) -> Result<Vec<Price>, csv::Error> {
    csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes()).deserialize().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_list_is_whole() {
        let prices = Price::of_the_paper();
        assert_eq!(prices.iter().filter(|price| price.mpps.is_some()).count(), 19, "its routers");
        assert_eq!(prices.iter().filter(|price| price.mpps.is_none()).count(), 1, "this Natrix");
        let last = prices.iter().find(|price| price.model == "SRX650").unwrap();
        assert_eq!((last.mpps, last.price_usd), (Some(0.85), 13_000.0));
        // Roughly 15 000 USD for each Mpps, as the paper reads its figure: between the cheapest and
        // the dearest line.
        let per_mpps: Vec<f64> = prices.iter().filter_map(|price| Some(price.price_usd / price.mpps?)).collect();
        assert!(per_mpps.iter().any(|usd| *usd < 15_000.0) && per_mpps.iter().any(|usd| *usd > 15_000.0));
    }

    #[test]
    fn a_faulty_list_is_reported_in_one_sentence() {
        let folder = std::env::temp_dir().join(format!("natrix-prices-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("prices.csv");
        for (text, reason) in [
            ("maker,model,mpps,price_usd\na,b,c,d\n", "invalid float literal"),
            ("maker,model,mpps,price_usd\na,b,1,0\n", "a b: a number is not above 0"),
            ("maker,model,mpps,price_usd\n", "no devices"),
        ] {
            fs::write(&path, text).unwrap();
            let error = Price::from_file(&path).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        fs::remove_dir_all(&folder).unwrap();
        assert!(Price::from_file(&path).unwrap_err().to_string().contains("No such file"));
    }
}
