import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * One line in, one line out: an expression and texts, as hexadecimal UTF-16, to "10..." (matches or not), "refused", or
 * "fails" where the expression is accepted and an attempt to match throws.
 */
class MatchAll {
    static String text(String hex) {
        StringBuilder built = new StringBuilder();
        for (int at = 0; at < hex.length(); at += 4) {
            built.append((char) Integer.parseInt(hex.substring(at, at + 4), 16));
        }
        return built.toString();
    }

    static String answer(String[] fields) {
        Pattern pattern;
        try {
            pattern = Pattern.compile(text(fields[0]));
        } catch (PatternSyntaxException refused) {
            return "refused";
        }
        StringBuilder built = new StringBuilder();
        for (int at = 1; at < fields.length; at++) {
            try {
                built.append(pattern.matcher(text(fields[at])).matches() ? '1' : '0');
            } catch (NullPointerException noRightSide) { // of "&&": the pattern is accepted and cannot be used
                return "fails";
            }
        }
        return built.toString();
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(answer(line.split("\t", -1)));
        }
    }
}
