# Completion of pinniped for PowerShell. The program itself returns the candidates.

Register-ArgumentCompleter -Native -CommandName 'pinniped' -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)

    $elements = $commandAst.CommandElements
    $program = $elements[0].Extent.Text.Trim("'", '"')
    $words = @($elements | Select-Object -Skip 1 | Where-Object { $_.Extent.EndOffset -lt $cursorPosition } |
        ForEach-Object { $_.Extent.Text.Trim("'", '"') })
    $current = "$wordToComplete".Trim("'", '"')
    # Older versions do not pass an empty argument to a program.
    $passesEmpty = $PSVersionTable.PSVersion -ge [version]'7.3' -and $PSNativeCommandArgumentPassing -ne 'Legacy'
    if ($current -eq '' -and -not $passesEmpty) { $current = '""' }

    $lines = @(& $program COMMAND @words $current 2>$null)
    if ($lines.Count -eq 0) { return }
    $directive = $lines[-1]
    $lines = @($lines | Select-Object -SkipLast 1)
    if ($lines.Count -eq 0) {
        # Without a result, PowerShell completes paths.
        if ($directive -ne ':0') { '' }
        return
    }
    foreach ($line in $lines) {
        $text, $description = $line -split "`t", 2
        if (-not $description) { $description = $text }
        # PowerShell has several quotation marks, and a leading @ has a meaning.
        $inserted = if ($text -match '^([\w%+=:./]|--?[a-z])[\w@%+=:./-]*$') { $text } else {
            "'" + [System.Management.Automation.Language.CodeGeneration]::EscapeSingleQuotedStringContent($text) + "'"
        }
        [System.Management.Automation.CompletionResult]::new($inserted, $text, 'ParameterValue', $description)
    }
}
